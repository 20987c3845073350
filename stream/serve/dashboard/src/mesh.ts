/**
 * Triangles of hexagons, as a graphics processor draws them. Pure.
 *
 * A vertex is the middle of a cell, as integers, and the way from there to a corner. So places are exact to 2⁻³² of the world
 * at every zoom, and a cell that crosses the antimeridian is whole.
 */

import { latLngToCell, getResolution } from 'h3-js';
import { cornersOf, restOf, type Shape } from './hexagons';

// Places on the square world of Mercator's projection, as parts of its edge from its north-western corner.

/** Units of its edge in which places are exact at every zoom. */
export const WORLD = 2 ** 32;
/** Pixels of its edge at zoom 0. */
export const TILE = 512;
/** The latitude at which it ends. */
const MOST_NORTH = 85.051129;

export const east = (lng: number) => lng / 360 + 0.5;

export const south = (lat: number) =>
  0.5 - Math.atanh(Math.sin((Math.max(Math.min(lat, MOST_NORTH), -MOST_NORTH) * Math.PI) / 180)) / (2 * Math.PI);

/** In units; what lies beyond the antimeridian begins again. */
export const unitsOf = (part: number) => Math.floor((part - Math.floor(part)) * WORLD);

/** Corners of a pentagon on edges of H3's icosahedron. */
const MOST_CORNERS = 10;

export interface Mesh {
  /** Of each vertex: x and y of the middle in units of the world, and the index of its cell. */
  places: Uint32Array;
  /** Of each vertex: x and y from the middle in worlds, and 0 on an outline or 1 away from it. */
  corners: Float32Array;
  /** Three vertices of each triangle, those of large cells first. */
  triangles: Uint32Array;
  /** Where the triangles of each resolution lie, coarse to fine: what is fine is drawn over what is coarse. */
  parts: { resolution: number; first: number; count: number }[];
}

/** A cell to draw: the index of the one to which it belongs and, where that is a part of it, all cells of that. */
interface Part {
  index: number;
  cell: string;
  among: Set<string> | null;
}

/** Which edges of a cell, from each corner to the next one, belong to the outline of what it is drawn for: no part of that lies beyond. */
function outlineOf({ cell, among }: Part, corners: Float64Array): boolean[] | null {
  if (!among) return null;
  const count = corners.length / 2;
  const middle = [0, 1].map((axis) => corners.reduce((sum, value, at) => sum + (at % 2 === axis ? value / count : 0), 0));
  const resolution = getResolution(cell);
  return Array.from({ length: count }, (_, at) => {
    const next = (at + 1) % count;
    const [lng, lat] = middle.map((from, axis) => from + 1.5 * ((corners[2 * at + axis]! + corners[2 * next + axis]!) / 2 - from));
    return !among.has(latLngToCell(lat!, lng!, resolution));
  });
}

/** Triangles of the cells, each of them known by its index. */
export function meshOf(shapes: (Shape & { resolution: number })[]): Mesh {
  const resolutions = [...new Set(shapes.map((shape) => shape.resolution))].sort((a, b) => a - b);
  const ordered = resolutions.map((resolution) => partsOf(shapes, resolution));
  const edges = ordered.flat().reduce((sum, { cell }) => sum + cornersOf(cell).length / 2, 0);
  // A vertex in the middle, and on each edge one corner, or three where some triangles have no outline.
  const most = ordered.flat().reduce((sum, { cell, among }) => sum + 1 + (cornersOf(cell).length / 2) * (among ? 3 : 1), 0);
  const [places, corners, triangles] = [new Uint32Array(3 * most), new Float32Array(3 * most), new Uint32Array(3 * edges)];
  let [vertices, drawn] = [0, 0];
  const points = new Float64Array(2 * MOST_CORNERS);

  const add = (part: Part): void => {
    const around = cornersOf(part.cell);
    const count = around.length / 2;
    let [x, y] = [0, 0];
    for (let at = 0; at < around.length; at += 2) {
      points[at] = east(around[at]!);
      points[at + 1] = south(around[at + 1]!);
      x += points[at]! / count;
      y += points[at + 1]! / count;
    }
    const [unitsEast, unitsSouth] = [unitsOf(x), unitsOf(y)];
    const vertex = (dx: number, dy: number, inside: number): number => {
      const at = 3 * vertices;
      places[at] = unitsEast;
      places[at + 1] = unitsSouth;
      places[at + 2] = part.index;
      corners[at] = dx;
      corners[at + 1] = dy;
      corners[at + 2] = inside;
      return vertices++;
    };
    const corner = (at: number, inside: number) => vertex(points[2 * at]! - x, points[2 * at + 1]! - y, inside);
    const triangle = (one: number, other: number) => {
      triangles[drawn] = middle;
      triangles[drawn + 1] = one;
      triangles[drawn + 2] = other;
      drawn += 3;
    };
    const middle = vertex(0, 0, 1);
    const first = vertices;
    for (let at = 0; at < count; at += 1) corner(at, 0);
    const outline = outlineOf(part, around);
    for (let at = 0; at < count; at += 1) {
      const next = (at + 1) % count;
      if (!outline || outline[at]) triangle(first + at, first + next);
      else triangle(corner(at, 1), corner(next, 1));
    }
  };

  const parts = ordered.map((cells, at) => {
    const before = drawn;
    cells.forEach(add);
    return { resolution: resolutions[at]!, first: before, count: drawn - before };
  });
  return { places: places.subarray(0, 3 * vertices), corners: corners.subarray(0, 3 * vertices), triangles, parts };
}

function partsOf(shapes: (Shape & { resolution: number })[], resolution: number): Part[] {
  return shapes.flatMap((shape, index): Part[] => {
    if (shape.resolution !== resolution) return [];
    if (shape.finest === undefined) return [{ index, cell: shape.cell, among: null }];
    const among = new Set(restOf(shape));
    return [...among].map((cell) => ({ index, cell, among }));
  });
}
