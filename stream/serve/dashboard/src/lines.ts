/** Lines of streets or routes, cut where they leave a cell, so that each piece can have the colour of its cell. Pure. */

import { cellToParent, getResolution, latLngToCell } from 'h3-js';
import type { Position } from 'geojson';
import { once } from './once';

/** Degrees, some 20 m: a piece that crosses an edge of a cell belongs to the cell in which it begins, if it is no longer. */
const SHORTEST = 2e-4;

/** A line that carries the colours. `width`: as a share of a main street's. One of a single place is a dot, such as a sensor. */
export interface Line {
  path: Position[];
  width: number;
}

/** Pieces of lines: longitude and latitude of both ends of each, its width, and the cell of the finest resolution in which it lies. */
export interface Pieces {
  ends: Float64Array;
  widths: Float64Array;
  cells: string[];
}

/** The pieces of lines; what several lines share, piece by piece, is there once. */
export function piecesOf(lines: Line[], resolution: number): Pieces {
  const [ends, widths, cells, seen]: [number[], number[], string[], Set<string>] = [[], [], [], new Set()];
  let [begun, wide] = [0, 1];
  const cellOf = ([lng, lat]: Position) => latLngToCell(lat!, lng!, resolution);
  const add = (a: Position, b: Position, from: string, to: string): void => {
    if (from !== to && Math.abs(a[0]! - b[0]!) + Math.abs(a[1]! - b[1]!) > SHORTEST) {
      const middle = [(a[0]! + b[0]!) / 2, (a[1]! + b[1]!) / 2];
      const between = cellOf(middle);
      add(a, middle, from, between);
      return add(middle, b, between, to);
    }
    // Parts of one straight line in one cell are one piece.
    if (cells.length > begun && cells.at(-1) === from) return void ends.splice(-2, 2, b[0]!, b[1]!);
    ends.push(a[0]!, a[1]!, b[0]!, b[1]!);
    widths.push(wide);
    cells.push(from);
  };
  for (const { path, width } of lines) {
    let from = cellOf(path[0]!);
    [begun, wide] = [cells.length, width];
    if (path.length === 1) add(path[0]!, path[0]!, from, from);
    for (let at = 1; at < path.length; at += 1) {
      const [a, b] = [path[at - 1]!, path[at]!];
      const to = cellOf(b);
      begun = cells.length;
      const key = [a, b].map(String).sort().join(' ');
      if (!seen.has(key)) add(a, b, from, to);
      seen.add(key);
      from = to;
    }
  }
  return { ends: Float64Array.from(ends), widths: Float64Array.from(widths), cells };
}

/** Of each piece the position among `cells` of the one in which it lies, merged or not; -1 where it is in none. */
export function placesIn(pieces: string[], cells: string[]): Int32Array {
  const at = new Map(cells.map((cell, index) => [cell, index]));
  const resolutions = [...new Set(cells.map(getResolution))].sort((a, b) => b - a);
  const find = once((piece: string): number => {
    const own = getResolution(piece);
    for (const resolution of resolutions) {
      const index = resolution <= own ? at.get(cellToParent(piece, resolution)) : undefined;
      if (index !== undefined) return index;
    }
    return -1;
  });
  return Int32Array.from(pieces, find);
}
