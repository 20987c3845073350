/** The numbers of cells, written on them or on the lines in them as soon as these are large enough. */

import type { Feature, FeatureCollection, Point } from 'geojson';
import type { LayerSpecification, LngLatBounds } from 'maplibre-gl';
import { centre } from './hexagons';
import { acrossOf, type Look } from './hexagonlayer';
import type { MapColours } from './palette';
import type { Hexagon } from './types';

export const NUMBERS = 'numbers';
/** Pixels across a cell from which on it has a number. */
const LEAST = 56;
/** Numbers at a time; more could not be read. */
const MOST = 600;

export type NumberOf = (hexagon: Hexagon) => string;

/** Over everything, so that names give way. Its font is the reader's own. */
export const numbersLayer = (colours: MapColours, letters: number): LayerSpecification => ({
  id: NUMBERS,
  type: 'symbol',
  source: NUMBERS,
  layout: { 'text-field': ['get', 'number'], 'text-font': ['Bold'], 'text-size': letters, 'text-padding': 1 },
  paint: { 'text-color': colours.selected, 'text-halo-color': colours.land, 'text-halo-width': 2 },
});

/** The numbers of the cells in sight; `middles`: where on a line that of a look stands, null where hexagons are drawn. */
export function numbersOf(looks: Look[], numberOf: NumberOf, zoom: number, bounds: LngLatBounds, middles: () => Map<number, [number, number]> | null): FeatureCollection<Point> {
  const large = new Set([...new Set(looks.map(({ hexagon }) => hexagon.resolution))].filter((resolution) => acrossOf(resolution, zoom) >= LEAST));
  const features: Feature<Point>[] = [];
  const places = large.size ? middles() : null;
  for (const [at, { hexagon }] of large.size ? looks.entries() : []) {
    if (features.length === MOST) break;
    const place = places ? places.get(at) : centre(hexagon.cell);
    if (!place || !large.has(hexagon.resolution) || !bounds.contains(place)) continue;
    const number = numberOf(hexagon);
    if (number) features.push({ type: 'Feature', properties: { number }, geometry: { type: 'Point', coordinates: place } });
  }
  return { type: 'FeatureCollection', features };
}
