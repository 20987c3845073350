/** What the address says after '#': place, window and what is shown, so that a link shows the same. Pure but for `location`. */

import { isValidCell } from 'h3-js';
import type { Kind, Scheme, Statistic } from './statistics';

export interface Place {
  at?: { lat: number; lng: number; zoom: number };
  window?: string;
  statistic?: Statistic;
  colours?: Scheme;
  values?: Kind;
  cell?: string;
}

const oneOf = <T extends string>(text: string | null, choices: readonly T[]): T | undefined =>
  choices.find((choice) => choice === text);

export function parsePlace(hash: string): Place {
  const fields = new URLSearchParams(hash.replace(/^#/, ''));
  const place: Place = {};
  const [zoom, lat, lng] = (fields.get('at') ?? '').split('/').map(Number);
  if (lat !== undefined && lng !== undefined && Math.abs(lat) <= 85 && Math.abs(lng) <= 180 && zoom! >= 0 && zoom! <= 22) {
    place.at = { zoom: zoom!, lat, lng };
  }
  const known = {
    window: /^[0-9-]{10}T[0-9:]{8}Z$/.exec(fields.get('window') ?? '')?.[0],
    cell: isValidCell(fields.get('cell') ?? '') ? fields.get('cell')! : undefined,
    statistic: oneOf(fields.get('statistic'), ['mean', 'p50', 'p85', 'spread'] as const),
    colours: oneOf(fields.get('colours'), ['usual', 'absolute'] as const),
    values: oneOf(fields.get('values'), ['modelled', 'raw'] as const),
  };
  return Object.assign(place, Object.fromEntries(Object.entries(known).filter(([, value]) => value !== undefined)));
}

export function placeText(place: Place): string {
  const { at, ...rest } = place;
  const parts = Object.entries(rest).filter(([, value]) => value);
  const fields = parts.map(([key, value]) => `${key}=${encodeURIComponent(value as string).replaceAll('%3A', ':')}`);
  if (at) fields.unshift(`at=${at.zoom.toFixed(2)}/${at.lat.toFixed(4)}/${at.lng.toFixed(4)}`);
  return `#${fields.join('&')}`;
}
