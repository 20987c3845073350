/** The lines of the ground: a graticule for each zoom. Pure. */

import type { Box } from './types';
import { east, south } from './world';

/** Spacing in degrees, the zooms it is drawn at, and how far around the box; 0 is the whole world. */
const GRATICULES = [
  { step: 10, from: 0, to: 5, around: 0 },
  { step: 1, from: 5, to: 8.5, around: 30 },
  { step: 0.1, from: 8.5, to: 12, around: 2 },
  { step: 0.01, from: 12, to: 24, around: 0.3 },
];

/** Numbers of each vertex: x and y from the middle in worlds, x and y of the way across the line. */
export const VERTEX_NUMBERS = 4;

export interface Grid {
  /** The middle of the box, in worlds, from which the vertices are told. */
  middle: [number, number];
  /** Two triangles of each line. */
  vertices: Float32Array;
  /** Vertices of what is drawn from one zoom until another. */
  parts: { from: number; to: number; first: number; count: number }[];
}

type Line = [fromLng: number, fromLat: number, toLng: number, toLat: number];

function widen([west, south, east, north]: Box, by: number): Box {
  return [Math.max(west - by, -180), Math.max(south - by, -85), Math.min(east + by, 180), Math.min(north + by, 85)];
}

function graticule(step: number, [west, south, east, north]: Box): Line[] {
  const steps = (from: number, to: number) => {
    const first = Math.ceil(from / step);
    return Array.from({ length: Math.max(Math.floor(to / step) - first + 1, 0) }, (_, index) => (first + index) * step);
  };
  return [...steps(west, east).map((lng): Line => [lng, south, lng, north]), ...steps(south, north).map((lat): Line => [west, lat, east, lat])];
}

/** The lines around a feed in that box. Lines from a corner to another run along the projection's axes, so that they stay straight. */
export function gridOf(box: Box): Grid {
  const middle: Grid['middle'] = [(east(box[0]) + east(box[2])) / 2, (south(box[1]) + south(box[3])) / 2];
  const [numbers, parts]: [number[], Grid['parts']] = [[], []];
  const add = (from: number, to: number, lines: Line[]) => {
    const first = numbers.length / VERTEX_NUMBERS;
    for (const [fromLng, fromLat, toLng, toLat] of lines) {
      const [x, y] = [east(fromLng) - middle[0], south(fromLat) - middle[1]];
      const [endX, endY] = [east(toLng) - middle[0], south(toLat) - middle[1]];
      const [acrossX, acrossY] = endX === x ? [1, 0] : [0, 1];
      const corner = (isEnd: boolean, side: number) =>
        numbers.push(isEnd ? endX : x, isEnd ? endY : y, side * acrossX, side * acrossY);
      corner(false, -1), corner(false, 1), corner(true, -1);
      corner(true, -1), corner(false, 1), corner(true, 1);
    }
    parts.push({ from, to, first, count: numbers.length / VERTEX_NUMBERS - first });
  };
  for (const { step, from, to, around } of GRATICULES) add(from, to, graticule(step, around ? widen(box, around) : [-180, -80, 180, 80]));
  return { middle, vertices: Float32Array.from(numbers), parts };
}
