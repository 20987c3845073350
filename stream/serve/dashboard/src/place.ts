/** What the address says after '#': place, window and what is shown, so that a link shows the same. Pure but for `location`. */

import { isValidCell } from 'h3-js';
import type { Box } from './types';
import type { Kind, Scheme, Statistic } from './statistics';

export interface Place {
  at?: { lat: number; lng: number; zoom: number };
  window?: string;
  statistic?: Statistic;
  colours?: Scheme;
  values?: Kind;
  cell?: string;
  area?: Box;
  /** Name of an area; `area` in the address, too. */
  named?: string;
  lines?: 'on' | 'off';
  large?: 'on';
}

const oneOf = <T extends string>(text: string | null, choices: readonly T[]): T | undefined =>
  choices.find((choice) => choice === text);

/** A start as messages write it. */
function parseWindow(text: string): string | undefined {
  return /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(text) && !Number.isNaN(Date.parse(text)) ? text : undefined;
}

/** Bounds in degrees to the fifth decimal. */
function parseArea(text: string): Box | undefined {
  if (!/^(-?\d{1,3}(\.\d{1,5})?(,|$)){4}$/.test(text)) return undefined;
  const [west, south, east, north] = text.split(',').map(Number) as Box;
  const proper = -180 <= west && west < east && east <= 180 && -90 <= south && south < north && north <= 90;
  return proper ? [west, south, east, north] : undefined;
}

/** A name of an area has a letter, which a box has not. */
const parseName = (text: string) => (text.length <= 300 && /\p{L}/u.test(text) ? text : undefined);

export function parsePlace(hash: string): Place {
  const fields = new URLSearchParams(hash.replace(/^#/, ''));
  const place: Place = {};
  const [zoom, lat, lng] = (fields.get('at') ?? '').split('/').map(Number);
  if (lat !== undefined && lng !== undefined && Math.abs(lat) <= 85 && Math.abs(lng) <= 180 && zoom! >= 0 && zoom! <= 22) {
    place.at = { zoom: zoom!, lat, lng };
  }
  const known = {
    window: parseWindow(fields.get('window') ?? ''),
    cell: isValidCell(fields.get('cell') ?? '') ? fields.get('cell')! : undefined,
    area: parseArea(fields.get('area') ?? ''),
    named: parseName(fields.get('area') ?? ''),
    lines: oneOf(fields.get('lines'), ['on', 'off'] as const),
    statistic: oneOf(fields.get('statistic'), ['mean', 'p50', 'p85', 'spread'] as const),
    colours: oneOf(fields.get('colours'), ['usual', 'absolute'] as const),
    large: oneOf(fields.get('large'), ['on'] as const),
    values: oneOf(fields.get('values'), ['modelled', 'raw'] as const),
  };
  return Object.assign(place, Object.fromEntries(Object.entries(known).filter(([, value]) => value !== undefined)));
}

export function placeText(place: Place): string {
  const { at, named, ...rest } = place;
  const parts = Object.entries({ ...rest, area: rest.area ?? named }).filter(([, value]) => value);
  const fields = parts.map(([key, value]) => `${key}=${encodeURIComponent(String(value)).replaceAll('%3A', ':').replaceAll('%2C', ',')}`);
  if (at) fields.unshift(`at=${at.zoom.toFixed(2)}/${at.lat.toFixed(4)}/${at.lng.toFixed(4)}`);
  return `#${fields.join('&')}`;
}
