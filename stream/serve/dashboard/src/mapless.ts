/** In place of the map where the browser cannot draw one: everything else of the page works, and the map draws nothing. */

import type { Map as MapLibre } from 'maplibre-gl';
import { make } from './dom';
import type { HexagonMap } from './map';
import { say } from './texts';
import type { Box } from './types';

type Drawn = Pick<MapLibre, 'on' | 'getCenter' | 'getZoom' | 'getBounds' | 'getCanvas' | 'easeTo' | 'fitBounds' | 'resize' | 'unproject' | 'redraw'>;

/** What the page asks of its map. */
export type Mapped = Omit<Pick<HexagonMap, keyof HexagonMap>, 'map'> & { map: Drawn };

const nothing = () => undefined;
const done = () => Promise.resolve();

/** `box`: the domain; its middle stands for the place in the address. */
export function mapless(container: HTMLElement, [west, south, east, north]: Box): Mapped {
  container.replaceChildren(make('p', { class: 'mapless', role: 'alert' }, say('map.none')));
  const [middle, canvas] = [{ lng: (west + east) / 2, lat: (south + north) / 2 }, make('canvas')];
  const map = {
    on: nothing, redraw: nothing, easeTo: nothing, fitBounds: nothing, resize: nothing, getZoom: () => 9, getCanvas: () => canvas, getCenter: () => middle,
    unproject: () => middle, getBounds: () => ({ getCenter: () => middle, getWest: () => west, getEast: () => east, getSouth: () => south, getNorth: () => north }),
  } as unknown as Drawn;
  return { map, begin: nothing, mark: nothing, setUnit: nothing, select: done, outline: done, alert: done, setLines: done, setHeat: done, setTheme: done, show: () => Promise.resolve(true) };
}
