/** What lies under the hexagons and on them: sea or land, stops of a timetable, and streets if a basemap is served. */

import type { ExpressionSpecification, LayerSpecification, Map as MapLibre, SourceSpecification } from 'maplibre-gl';
import type { Position } from 'geojson';
import { PMTiles, Protocol, TileType } from 'pmtiles';
import type { Line } from './lines';
import type { MapColours } from './palette';

export interface Ground {
  sources: Record<string, SourceSpecification>;
  layers: LayerSpecification[];
}

/** The zoom from which the coast is left out: it is known to some ten kilometres, and close up it would mislead. */
export const LAND_UNTIL = 7.5;

/** Below everything; close up, all of it is land. */
export const sea = (colours: MapColours): LayerSpecification => ({
  id: 'sea',
  type: 'background',
  paint: { 'background-color': ['interpolate', ['linear'], ['zoom'], LAND_UNTIL - 1.5, colours.sea, LAND_UNTIL, colours.land] },
});

const WIDTH: ExpressionSpecification = ['interpolate', ['exponential', 1.4], ['zoom'], 8, 0.5, 12, 1.4, 16, 6];

/** The layer of the timetable's stops. */
export const STOPS = 'stops';

/** Stops, close up. */
export function stops(colours: MapColours, shown: boolean): Ground {
  const layout = { visibility: shown ? ('visible' as const) : ('none' as const) };
  return {
    sources: { stops: { type: 'geojson', data: new URL('api/v1/stops', document.baseURI).href } },
    layers: [
      {
        id: STOPS,
        type: 'circle',
        source: 'stops',
        minzoom: 13,
        layout,
        paint: { 'circle-radius': ['interpolate', ['linear'], ['zoom'], 13, 1.5, 16, 5], 'circle-color': colours.land, 'circle-stroke-color': colours.road, 'circle-stroke-width': 1.2 },
      },
    ],
  };
}

const ROADS = /^(roads?|streets|transportation)$/;
/** By the tag `kind` or `class` of these schemas: what no road vehicle drives on, and streets that are drawn half as wide. */
const UNDRIVEN = /path|foot|cycle|pedestrian|steps|track|rail|tram|subway|transit|ferry|pier|aerial|runway|taxiway/;
const MINOR = /minor|residential|service|tertiary|unclassified|living|street|other/;
/** How wide a sensor is, as a share of a main street. */
const SENSOR = 2.5;

/** Names of layers in the usual tile schemas (Protomaps, OpenMapTiles, Shortbread), in drawing order. */
const STREETS: { name: RegExp; kind: 'fill' | 'line'; colour: keyof MapColours }[] = [
  { name: /^(earth|land)$/, kind: 'fill', colour: 'land' },
  { name: /^(landuse|landcover|park|natural|sites)$/, kind: 'fill', colour: 'green' },
  { name: /^(buildings?)$/, kind: 'fill', colour: 'built' },
  { name: /^(water|ocean|water_polygons)$/, kind: 'fill', colour: 'sea' },
  { name: /^(waterway|water_lines)$/, kind: 'line', colour: 'sea' },
  { name: ROADS, kind: 'line', colour: 'road' },
  { name: /^transit$/, kind: 'line', colour: 'road' },
  { name: /^(boundaries|boundary)$/, kind: 'line', colour: 'coast' },
];

/** Layers that hold names in the same schemas, the least important first. */
const NAMES: { name: RegExp; kind: 'LineString' | 'Point'; from: number; colour: keyof MapColours }[] = [
  { name: /^(roads?|transportation_name|street_labels)$/, kind: 'LineString', from: 9.5, colour: 'name' },
  { name: /^(water|waterway|water_lines_labels)$/, kind: 'LineString', from: 9, colour: 'waterName' },
  { name: /^(places?|place_labels)$/, kind: 'Point', from: 0, colour: 'name' },
];

/** Names along lines or at points of a source, in the reader's own font: the style names none of the server's. */
function written(id: string, source: { source: string; 'source-layer'?: string }, { kind, from, colour }: Omit<(typeof NAMES)[number], 'name'>, colours: MapColours, letters: number): LayerSpecification {
  return {
    id,
    type: 'symbol',
    ...source,
    minzoom: from,
    filter: ['all', ['==', ['geometry-type'], kind], ['has', 'name']],
    layout: {
      'text-field': ['to-string', ['get', 'name']],
      'text-size': letters,
      'text-padding': 12,
      'symbol-placement': kind === 'Point' ? 'point' : 'line',
    },
    paint: { 'text-color': colours[colour], 'text-halo-color': colours.land, 'text-halo-width': 1.5 },
  };
}

const names = (ids: string[], colours: MapColours, letters: number): LayerSpecification[] =>
  NAMES.flatMap(({ name, ...look }) =>
    ids.filter((id) => name.test(id)).map((id) => written(`names-${id}`, { source: 'streets', 'source-layer': id }, look, colours, letters)));

/** Names along the operator's streets. */
export const streetNames = (colours: MapColours, letters: number): Ground => ({
  sources: { names: { type: 'geojson', data: new URL('api/v1/streets', document.baseURI).href } },
  layers: [written('names', { source: 'names' }, { kind: 'LineString', from: 9.5, colour: 'name' }, colours, letters)],
});

/** What is in a PMTiles archive: layers of vectors, or pictures where there are none. */
export interface Archive {
  url: string;
  attribution: string;
  vectors: string[] | null;
}

/** The served archive, which is drawn from now on where a source has its address. */
export async function described(protocol: Protocol, address: string): Promise<Archive> {
  const archive = new PMTiles(address);
  protocol.add(archive);
  const [header, metadata] = [await archive.getHeader(), (await archive.getMetadata()) as { vector_layers?: { id: string }[]; attribution?: string }];
  return {
    url: `pmtiles://${address}`,
    attribution: metadata.attribution ? withoutMarkup(metadata.attribution) : '',
    vectors: header.tileType === TileType.Mvt ? (metadata.vector_layers ?? []).map((layer) => layer.id) : null,
  };
}

/** An archive as a source and layers, with names of that many pixels; unknown layers are drawn as lines. */
export function streets({ url, attribution, vectors: ids }: Archive, colours: MapColours, letters: number): Ground {
  if (!ids) {
    const source: SourceSpecification = { type: 'raster', url, tileSize: 256, attribution };
    return { sources: { streets: source }, layers: [{ id: 'streets', type: 'raster', source: 'streets' }] };
  }
  const known = STREETS.flatMap(({ name, kind, colour }) =>
    ids.filter((id) => name.test(id)).map((id) => ({ id, kind, colour })),
  );
  const drawn = known.length ? known : ids.map((id) => ({ id, kind: 'line' as const, colour: 'road' as const }));
  return {
    sources: { streets: { type: 'vector', url, attribution } },
    layers: [...drawn.map(({ id, kind, colour }): LayerSpecification => {
      const common = { id: `streets-${id}`, source: 'streets', 'source-layer': id };
      if (kind === 'line') return { ...common, type: 'line', paint: { 'line-color': colours[colour], 'line-width': WIDTH, 'line-opacity': 0.5 } };
      return { ...common, type: 'fill', filter: ['==', ['geometry-type'], 'Polygon'], paint: { 'fill-color': colours[colour] } };
    }), ...names(ids, colours, letters)],
  };
}

/** The lines that the operator served, and sensors as dots. */
export const network = (paths: Position[][]): Line[] => paths.map((path) => ({ path, width: path.length > 1 ? 1 : SENSOR }));

/** The roads of the archive in the tiles that are loaded. */
export function roads(map: MapLibre, { vectors }: Archive): Line[] {
  return (vectors ?? []).filter((id) => ROADS.test(id)).flatMap((sourceLayer) =>
    map.querySourceFeatures('streets', { sourceLayer, validate: false }).flatMap(({ geometry, properties }): Line[] => {
      const kind = String(properties.kind ?? properties.class ?? '');
      if (UNDRIVEN.test(kind)) return [];
      const paths = geometry.type === 'LineString' ? [geometry.coordinates] : geometry.type === 'MultiLineString' ? geometry.coordinates : [];
      return paths.map((path) => ({ path, width: MINOR.test(kind) ? 0.5 : 1 }));
    }),
  );
}

/**
 * The attribution's words without its links: the page fetches nothing from elsewhere and leads nowhere. They are HTML again,
 * which is what the map expects, so that words that look like markup stay words.
 */
export function withoutMarkup(html: string): string {
  const words = new DOMParser().parseFromString(html, 'text/html').body;
  words.replaceChildren(words.textContent ?? '');
  return words.innerHTML;
}
