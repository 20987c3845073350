/** The land of the world; loaded where the map is first seen from afar. */

import type { FeatureCollection, MultiPolygon, Position } from 'geojson';
import { feature } from 'topojson-client';
import type { GeometryCollection, Topology } from 'topojson-specification';
import world from 'world-atlas/land-110m.json';
import type { Ground } from './basemap';
import type { MapColours } from './palette';

/** The land with its coast, which fades out until that zoom. */
export function land(colours: MapColours, until: number): Ground {
  const topology = world as unknown as Topology<{ land: GeometryCollection }>;
  const data = feature(topology, topology.objects.land) as FeatureCollection<MultiPolygon>;
  for (const { geometry } of data.features) geometry.coordinates = geometry.coordinates.map((polygon) => polygon.map(unrolled));
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

/** A ring that crosses 180° goes on beyond it, else it would be closed across the whole map; one around a pole is closed along it. */
function unrolled(ring: Position[]): Position[] {
  let [turns, before] = [0, ring[0]![0]!];
  const points = ring.map(([lng, lat]): Position => {
    if (Math.abs(lng! - before) > 180) turns += before > lng! ? 360 : -360;
    before = lng!;
    return [lng! + turns, lat!];
  });
  if (!turns) return points;
  const pole = points[0]![1]! > 0 ? 90 : -90;
  return [...points, [points.at(-1)![0]!, pole], [points[0]![0]!, pole], points[0]!];
}
