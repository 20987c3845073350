/** Shapes of H3 cells, and finding the cell at a place. Pure. */

import { cellToBoundary, cellToChildren, cellToLatLng, cellToParent, cellsToMultiPolygon, getResolution, latLngToCell } from 'h3-js';
import type { MultiPolygon, Polygon, Position } from 'geojson';
import type { Box, Hexagon } from './types';

/** A cell, and the smaller cells that are published apart from it. */
export type Shape = Pick<Hexagon, 'cell' | 'excludes'>;

/** One and the same shape has one key. */
export const shapeKey = (hexagon: Shape) =>
  hexagon.excludes?.length ? [hexagon.cell, ...[...hexagon.excludes].sort()].join(' ') : hexagon.cell;

/** Outline of a cell without the smaller cells that are published apart from it. */
export function shapeOf(hexagon: Shape): Polygon | MultiPolygon {
  const excludes = hexagon.excludes ?? [];
  if (!excludes.length) return { type: 'Polygon', coordinates: [eastward(cellToBoundary(hexagon.cell, true))] };
  const finest = Math.max(...excludes.map(getResolution));
  const apart = new Set(excludes.flatMap((cell) => cellToChildren(cell, finest)));
  const rest = cellToChildren(hexagon.cell, finest).filter((cell) => !apart.has(cell));
  const rings = cellsToMultiPolygon(rest, true);
  return { type: 'MultiPolygon', coordinates: rings.map((polygon) => polygon.map(eastward)) };
}

/** A ring that crosses the antimeridian, moved to its eastern side. */
function eastward(ring: number[][]): Position[] {
  const lngs = ring.map((point) => point[0]!);
  if (Math.max(...lngs) - Math.min(...lngs) <= 180) return ring;
  return ring.map(([lng, lat]) => [lng! < 0 ? lng! + 360 : lng!, lat!]);
}

/** Smallest box around a shape. */
export function boxOf(shape: Polygon | MultiPolygon): Box {
  const points = (shape.coordinates as unknown[]).flat(shape.type === 'Polygon' ? 1 : 2) as Position[];
  const [lngs, lats] = [points.map(([lng]) => lng!), points.map(([, lat]) => lat!)];
  const least = (numbers: number[]) => numbers.reduce((a, b) => Math.min(a, b));
  const most = (numbers: number[]) => numbers.reduce((a, b) => Math.max(a, b));
  return [least(lngs), least(lats), most(lngs), most(lats)];
}

export function centre(cell: string): [number, number] {
  const [lat, lng] = cellToLatLng(cell);
  return [lng, lat];
}

/** The finest cell of `cells` that covers a place; `resolutions` from fine to coarse. */
export function cellAt<T>(cells: Map<string, T>, resolutions: number[], lng: number, lat: number): T | undefined {
  for (const resolution of resolutions) {
    const found = cells.get(latLngToCell(lat, lng, resolution));
    if (found) return found;
  }
  return undefined;
}

/** Says of a cell that is not among the `others` whether some of them, of other sizes, lie in it or cover it. */
export function overlapping(others: Map<string, Hexagon>): (hexagon: Hexagon) => boolean {
  const sizes = [...new Set([...others.values()].map(({ resolution }) => resolution))];
  const finer = new Map<number, Map<string, string[]>>();
  const inside = ({ cell, resolution }: Hexagon): string[] => {
    let cells = finer.get(resolution);
    if (!cells) {
      finer.set(resolution, (cells = new Map<string, string[]>()));
      for (const other of others.values()) {
        if (other.resolution <= resolution) continue;
        const parent = cellToParent(other.cell, resolution);
        cells.set(parent, [...(cells.get(parent) ?? []), other.cell]);
      }
    }
    return cells.get(cell) ?? [];
  };
  const isIn = (cell: string, area: string) =>
    getResolution(area) <= getResolution(cell) && cellToParent(cell, getResolution(area)) === area;
  return (hexagon) =>
    sizes.some((size) => size < hexagon.resolution && others.has(cellToParent(hexagon.cell, size))) ||
    inside(hexagon).some((cell) => !hexagon.excludes?.some((apart) => isIn(cell, apart)));
}

/** Smallest box around the outlines of cells; null where there are none. */
export function boundsOf(shapes: Iterable<Shape>): Box | null {
  let around: Box | null = null;
  for (const shape of shapes) {
    const [west, south, east, north]: Box = boxOf(shapeOf(shape));
    around = around
      ? [Math.min(around[0], west), Math.min(around[1], south), Math.max(around[2], east), Math.max(around[3], north)]
      : [west, south, east, north];
  }
  return around;
}
