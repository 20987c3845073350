/** Places on the square world of Mercator's projection, as parts of its edge from its north-western corner. Pure. */

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
