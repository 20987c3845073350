/** The land of the world; loaded where the map is first seen from afar. */

import type { FeatureCollection } from 'geojson';
import { feature } from 'topojson-client';
import type { GeometryCollection, Topology } from 'topojson-specification';
import world from 'world-atlas/land-110m.json';
import type { Ground } from './basemap';
import type { MapColours } from './palette';

/** The land with its coast, which fades out until that zoom. */
export function land(colours: MapColours, until: number): Ground {
  const topology = world as unknown as Topology<{ land: GeometryCollection }>;
  const data = feature(topology, topology.objects.land) as FeatureCollection;
  return {
    sources: { land: { type: 'geojson', data } },
    layers: [
      { id: 'land', type: 'fill', source: 'land', maxzoom: until, paint: { 'fill-color': colours.land } },
      {
        id: 'coast',
        type: 'line',
        source: 'land',
        maxzoom: until,
        paint: { 'line-color': colours.coast, 'line-opacity': ['interpolate', ['linear'], ['zoom'], until - 1.5, 1, until, 0] },
      },
    ],
  };
}
