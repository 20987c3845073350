/** What the address says after '#': place, window and what is shown, so that a link shows the same. Pure but for `location`. */

import { isValidCell } from 'h3-js';
import { boxFrom, parseRing, ringText, type Area } from './area';
import { overText, parseOver } from './over';
import type { Box, Over } from './types';

/** A start as messages write it. */
const isStart = (text: string) => /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(text) && !Number.isNaN(Date.parse(text));

/** A date of the calendar. */
function isDay(text: string): boolean {
  const time = /^\d{4}-\d\d-\d\d$/.test(text) ? Date.parse(`${text}T00:00:00Z`) : NaN;
  return !Number.isNaN(time) && new Date(time).toISOString().startsWith(text) && !text.startsWith('0000');
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

const oneOf = <const Choice extends string>(...choices: Choice[]) => (text: string) => choices.find((choice) => choice === text);

const matching = (isRight: (text: string) => boolean) => (text: string) => (isRight(text) ? text : undefined);

/** What reads the text of each field; `from` and `to` are the range of windows to play, `day` the local date to compare with. */
const FIELDS = {
  feed: matching((text) => /^[a-z][a-z0-9-]{0,31}$/.test(text)),
  window: matching(isStart),
  from: matching(isStart),
  to: matching(isStart),
  cell: matching(isValidCell),
  lines: oneOf('on', 'off'),
  hexagons: oneOf('on'),
  heat: oneOf('on'),
  statistic: oneOf('mean', 'moving', 'p50', 'p85', 'spread'),
  colours: oneOf('now', 'typical', 'difference', 'day', 'scheduled'),
  day: matching(isDay),
  large: oneOf('on'),
  values: oneOf('estimate', 'raw'),
};

type Fields = { [Name in keyof typeof FIELDS]?: ReturnType<(typeof FIELDS)[Name]> };

/** `over`: the days and hours of a mean over the range. */
export type Place = Fields & { at?: { lat: number; lng: number; zoom: number }; over?: Over; area?: Area };

export function parsePlace(hash: string): Place {
  const fields = new URLSearchParams(hash.replace(/^#/, ''));
  const known = Object.entries(FIELDS).map(([name, parse]) => [name, parse(fields.get(name) ?? '')] as const);
  const place: Place = Object.fromEntries(known.filter(([, value]) => value));
  const [zoom, lat, lng] = (fields.get('at') ?? '').split('/').map(Number);
  if (lat !== undefined && lng !== undefined && Math.abs(lat) <= 85 && Math.abs(lng) <= 180 && zoom! >= 0 && zoom! <= 22) {
    place.at = { zoom: zoom!, lat, lng };
  }
  const [over, area] = [parseOver(fields.get('mean') ?? '', place), parseArea(fields.get('area') ?? '', fields.get('ring'))];
  return { ...place, ...(over && { over }), ...(area && { area }) };
}

export function placeText(place: Place): string {
  const { at, area, over, ...rest } = place;
  const parts = Object.entries({ ...rest, ...(over ? { mean: overText(over) } : {}), ...areaFields(area) }).filter(([, value]) => value);
  const fields = parts.map(([key, value]) => `${key}=${encodeURIComponent(String(value)).replaceAll('%3A', ':').replaceAll('%2C', ',')}`);
  if (at) fields.unshift(`at=${at.zoom.toFixed(2)}/${at.lat.toFixed(4)}/${at.lng.toFixed(4)}`);
  return `#${fields.join('&')}`;
}
