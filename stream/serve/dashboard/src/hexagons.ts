/** Shapes of H3 cells, and finding the cell at a place. Pure. */

import { cellToBoundary, cellToChildren, cellToLatLng, cellToParent, cellsToMultiPolygon, getResolution, latLngToCell } from 'h3-js';
import type { MultiPolygon, Polygon, Position } from 'geojson';
import { once } from './once';
import type { Box, Hexagon } from './types';

/**
 * A cell, the smaller cells that are published apart from it and, where it was merged, the finest resolution of its window: an H3
 * parent is no union of its children, and the children are what was merged (`stream/messages/shapes.py`).
 */
export type Shape = Pick<Hexagon, 'cell' | 'excludes' | 'finest'>;

/** One and the same shape has one key. */
export const shapeKey = ({ cell, excludes = [], finest }: Shape) =>
  finest === undefined ? cell : [cell, finest, ...[...excludes].sort()].join(' ');

/** The finest resolution of cells and of what they exclude. */
export const finestOf = (hexagons: Shape[]) => Math.max(0, ...new Set(hexagons.flatMap(({ cell, excludes = [] }) => [cell, ...excludes].map(getResolution))));

/** Cells whose corners are remembered: H3 needs most of the time until a window is drawn. */
const MOST_REMEMBERED = 50_000;

/** Corners of a cell: longitude, latitude of the first one, and so on. East of the antimeridian, longitudes are above 180 if it crosses it. */
export const cornersOf = once((cell: string) => {
  const ring = eastward(cellToBoundary(cell, true));
  const corners = new Float64Array(2 * (ring.length - 1));
  for (let at = 0; at < corners.length; at += 2) [corners[at], corners[at + 1]] = ring[at / 2] as [number, number];
  return corners;
}, MOST_REMEMBERED);

/** The finest cells of which a merged cell is made, without those that are published apart from it; none of one that is not merged. */
export function restOf({ cell, excludes = [], finest }: Shape): string[] {
  if (finest === undefined) return [];
  const apart = new Set(excludes.flatMap((one) => cellToChildren(one, finest)));
  return cellToChildren(cell, finest).filter((one) => !apart.has(one));
}

/** Outline of a cell without the smaller cells that are published apart from it. */
export function shapeOf(hexagon: Shape): Polygon | MultiPolygon {
  if (hexagon.finest === undefined) return { type: 'Polygon', coordinates: [eastward(cellToBoundary(hexagon.cell, true))] };
  const rings = cellsToMultiPolygon(restOf(hexagon), true);
  return { type: 'MultiPolygon', coordinates: rings.map((polygon) => polygon.map(eastward)) };
}

/** A ring that crosses the antimeridian, moved to its eastern side. */
function eastward(ring: number[][]): Position[] {
  let [west, east] = [Infinity, -Infinity];
  for (const [lng] of ring) [west, east] = [Math.min(west, lng!), Math.max(east, lng!)];
  if (east - west <= 180) return ring;
  return ring.map(([lng, lat]) => [lng! < 0 ? lng! + 360 : lng!, lat!]);
}

export function centre(cell: string): [number, number] {
  const [lat, lng] = cellToLatLng(cell);
  return [lng, lat];
}

/** The cell of `cells` that covers a place; `resolutions` from fine to coarse, of which the first is that of all outlines. */
export function cellAt<T>(cells: Map<string, T>, resolutions: number[], lng: number, lat: number): T | undefined {
  if (!resolutions.length) return undefined;
  const finest = latLngToCell(lat, lng, resolutions[0]!);
  for (const resolution of resolutions) {
    const found = cells.get(cellToParent(finest, resolution));
    if (found) return found;
  }
  return undefined;
}

/** Smallest box around places; null where there are none. */
function boxAround(places: Iterable<Position>): Box | null {
  let [west, south, east, north] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [lng, lat] of places) {
    [west, east] = [Math.min(west, lng!), Math.max(east, lng!)];
    [south, north] = [Math.min(south, lat!), Math.max(north, lat!)];
  }
  return west > east ? null : [west, south, east, north];
}

/** Smallest box around polygons. */
export const boxOf = ({ coordinates }: MultiPolygon) => boxAround(coordinates.flat(2));

/** Smallest box around the outlines of cells. */
export function boundsOf(shapes: Iterable<Shape>): Box | null {
  const cells = [...shapes].flatMap((shape) => (shape.finest === undefined ? [shape.cell] : restOf(shape)));
  return boxAround(cells.flatMap((cell) => Array.from({ length: cornersOf(cell).length / 2 }, (_, at) => [...cornersOf(cell).subarray(2 * at, 2 * at + 2)])));
}
