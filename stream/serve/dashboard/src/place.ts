/** What the address says after '#': place, window and what is shown, so that a link shows the same. Pure but for `location`. */

import { isValidCell } from 'h3-js';
import { boxFrom, parseRing, ringText, type Area } from './area';
import { overText, parseOver } from './over';
import type { Kind, Scheme, Statistic } from './statistics';
import type { Box, Over } from './types';

export interface Place {
  at?: { lat: number; lng: number; zoom: number };
  feed?: string;
  window?: string;
  /** The days and hours of a mean over the range. */
  over?: Over;
  /** The range of windows to play. */
  from?: string;
  to?: string;
  statistic?: Statistic;
  colours?: Scheme;
  /** The local date to compare with. */
  day?: string;
  values?: Kind;
  cell?: string;
  area?: Area;
  lines?: 'on' | 'off';
  hexagons?: 'on';
  heat?: 'on';
  large?: 'on';
}

const oneOf = <T extends string>(text: string | null, choices: readonly T[]): T | undefined =>
  choices.find((choice) => choice === text);

/** A start as messages write it. */
function parseWindow(text: string): string | undefined {
  return /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(text) && !Number.isNaN(Date.parse(text)) ? text : undefined;
}

/** A date of the calendar. */
function parseDay(text: string): string | undefined {
  const time = /^\d{4}-\d\d-\d\d$/.test(text) ? Date.parse(`${text}T00:00:00Z`) : NaN;
  return !Number.isNaN(time) && new Date(time).toISOString().startsWith(text) && !text.startsWith('0000') ? text : undefined;
}

/** Bounds in degrees; of more than five decimals, the nearest. */
const parseBox = (text: string): Box | null =>
  /^(-?\d{1,3}(\.\d{1,15})?(,|$)){4}$/.test(text) ? boxFrom(text.split(',').map(Number)) : null;

/** With corners, a drawn area of that name. Without, a name of the operator, which has a letter, or a box, which has none. */
function parseArea(text: string, corners: string | null): Area | undefined {
  if (corners !== null) return parseRing(corners, text);
  const box = parseBox(text);
  if (box) return { kind: 'box', box };
  return text.length <= 300 && /\p{L}/u.test(text) ? { kind: 'named', name: text } : undefined;
}

function areaFields(area: Area | undefined): Record<string, string> {
  if (area?.kind === 'box') return { area: area.box.join() };
  if (area?.kind === 'named') return { area: area.name };
  return area?.kind === 'drawn' ? { area: area.drawn.name, ring: ringText(area.drawn.ring) } : {};
}

export function parsePlace(hash: string): Place {
  const fields = new URLSearchParams(hash.replace(/^#/, ''));
  const place: Place = {};
  const [zoom, lat, lng] = (fields.get('at') ?? '').split('/').map(Number);
  if (lat !== undefined && lng !== undefined && Math.abs(lat) <= 85 && Math.abs(lng) <= 180 && zoom! >= 0 && zoom! <= 22) {
    place.at = { zoom: zoom!, lat, lng };
  }
  const known = {
    feed: /^[a-z][a-z0-9-]{0,31}$/.test(fields.get('feed') ?? '') ? fields.get('feed')! : undefined,
    window: parseWindow(fields.get('window') ?? ''),
    from: parseWindow(fields.get('from') ?? ''),
    to: parseWindow(fields.get('to') ?? ''),
    over: parseOver(fields.get('mean') ?? '', { from: parseWindow(fields.get('from') ?? ''), to: parseWindow(fields.get('to') ?? '') }),
    cell: isValidCell(fields.get('cell') ?? '') ? fields.get('cell')! : undefined,
    area: parseArea(fields.get('area') ?? '', fields.get('ring')),
    lines: oneOf(fields.get('lines'), ['on', 'off'] as const),
    hexagons: oneOf(fields.get('hexagons'), ['on'] as const),
    heat: oneOf(fields.get('heat'), ['on'] as const),
    statistic: oneOf(fields.get('statistic'), ['mean', 'moving', 'p50', 'p85', 'spread'] as const),
    colours: oneOf(fields.get('colours'), ['now', 'typical', 'difference', 'day', 'scheduled'] as const),
    day: parseDay(fields.get('day') ?? ''),
    large: oneOf(fields.get('large'), ['on'] as const),
    values: oneOf(fields.get('values'), ['estimate', 'raw'] as const),
  };
  return Object.assign(place, Object.fromEntries(Object.entries(known).filter(([, value]) => value !== undefined)));
}

export function placeText(place: Place): string {
  const { at, area, over, ...rest } = place;
  const parts = Object.entries({ ...rest, ...(over ? { mean: overText(over) } : {}), ...areaFields(area) }).filter(([, value]) => value);
  const fields = parts.map(([key, value]) => `${key}=${encodeURIComponent(String(value)).replaceAll('%3A', ':').replaceAll('%2C', ',')}`);
  if (at) fields.unshift(`at=${at.zoom.toFixed(2)}/${at.lat.toFixed(4)}/${at.lng.toFixed(4)}`);
  return `#${fields.join('&')}`;
}
