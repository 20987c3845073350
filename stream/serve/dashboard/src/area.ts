/** Areas: those that the operator named, and those that readers draw, as forms and addresses write them. Pure. */

import type { Position } from 'geojson';
import { decimals, say } from './texts';
import type { Box, RangeCount } from './types';

/** Corners in degrees, each longitude and latitude, and what the reader calls it; the name may be empty. */
export interface Drawn {
  ring: Position[];
  name: string;
}

/** Why a drawn area cannot be shown. */
export interface Refusal {
  reason: 'bounds' | 'corners' | 'ring' | 'line' | 'name';
  count: number;
  /** That of a form which is no corner. */
  line: string;
}

/** The area that is open. */
export type Area =
  | { kind: 'box'; box: Box }
  | { kind: 'named'; name: string }
  | { kind: 'drawn'; drawn: Drawn }
  | { kind: 'refused'; refusal: Refusal };

export const MOST_CORNERS = 100;
export const LONGEST_NAME = 80;

/** As in the operator's files (`check_name` in `stream/serve/city/places.py`): controls, and those of direction, which are left out. */
const CONTROLS = /[\p{Cc}\p{Cs}\p{Zl}\p{Zp}]/u;
const DIRECTIONS = /[\u202a-\u202e\u2066-\u2069]/g;
/** As `public.areas` has it: other names could not be told from boxes, or from the corridors of routes. */
const NAME = /^(?!route:).*\p{L}/su;
const COORDINATE = String.raw`-?\d{1,3}(?:\.\d{1,15})?`;
const RING = new RegExp(`^${COORDINATE}(?:,${COORDINATE})*$`);
const CORNER = new RegExp(String.raw`^\s*(${COORDINATE})[\s,]\s*(${COORDINATE})\s*$`);

/** About a metre; never −0, of which an address would make 0. */
const round = (degrees: number) => Math.round(degrees * 1e5) / 1e5 + 0;

const isOnEarth = ([lng, lat]: Position) => Math.abs(lng!) <= 180 && Math.abs(lat!) <= 90;

/** The box between these bounds, typed, dragged or of an address; null where they are none. */
export function boxFrom(bounds: number[]): Box | null {
  const [west, south, east, north] = bounds.map(round) as Box;
  return -180 <= west && west < east && east <= 180 && -90 <= south && south < north && north <= 90 ? [west, south, east, north] : null;
}

const refusal = (reason: Refusal['reason'], count = 0, line = ''): Area => ({ kind: 'refused', refusal: { reason, count, line } });

/** The box between these bounds, or why there is none. */
export function boxArea(bounds: number[], reason: Refusal['reason']): Area {
  const box = boxFrom(bounds);
  return box ? { kind: 'box', box } : refusal(reason);
}

/** The area of these corners, or why there is none. */
export function drawnArea(corners: Position[], name: string): Area {
  const ring = corners.map(([lng, lat]): Position => [round(lng!), round(lat!)]);
  if (new Set(ring.map(String)).size < 3 || ring.length > MOST_CORNERS) return refusal('corners', ring.length);
  if (!ring.every(isOnEarth)) return refusal('ring');
  const said = name.replace(DIRECTIONS, '').trim();
  const isWrong = [...said].length > LONGEST_NAME || CONTROLS.test(said) || !NAME.test(said);
  if (said && isWrong) return refusal('name');
  return { kind: 'drawn', drawn: { ring, name: said } };
}

/** Of an address: longitude and latitude of every corner, with commas between all. */
export function parseRing(text: string, name: string): Area {
  const numbers = text.split(',');
  if (numbers.length > 2 * MOST_CORNERS) return refusal('corners', Math.ceil(numbers.length / 2));
  if (!RING.test(text) || numbers.length % 2) return refusal('ring');
  return drawnArea(numbers.flatMap((lng, at) => (at % 2 ? [] : [[Number(lng), Number(numbers[at + 1])]])), name);
}

/** Of a form: a line for every corner with latitude and longitude, as maps write them. */
export function parseCorners(text: string, name: string): Area {
  const lines = text.split('\n').filter((line) => line.trim());
  if (lines.length > MOST_CORNERS) return refusal('corners', lines.length);
  const wrong = lines.find((line) => !cornerOf(line));
  if (wrong !== undefined) return refusal('line', 0, wrong.trim().slice(0, LONGEST_NAME));
  return drawnArea(lines.map((line) => cornerOf(line)!), name);
}

/** The corner that a line of a form is; null where it is none, or none yet. */
function cornerOf(line: string): Position | null {
  const [, lat, lng] = CORNER.exec(line) ?? [];
  const corner: Position = [round(Number(lng)), round(Number(lat))];
  return lat && isOnEarth(corner) ? corner : null;
}

/** The lines of a form that are corners already. */
export const cornersSoFar = (text: string) => text.split('\n').map(cornerOf).filter((corner) => corner !== null);

const cornerLine = ([lng, lat]: Position) => `${round(lat!).toFixed(5)}, ${round(lng!).toFixed(5)}`;

export const cornerLines = (ring: Position[]) => ring.map(cornerLine).join('\n');

/** The text of a form that has these corners now: its lines that are no corners yet stay as they were typed. */
export function linesWith(corners: Position[], text: string): string {
  const left = corners.map(cornerLine);
  const lines = text.split('\n').filter((line) => line.trim()).map((line) => (cornerOf(line) ? left.shift() : line));
  return [...lines, ...left].filter((line) => line !== undefined).join('\n');
}

export const ringText = (ring: Position[]) => ring.flat().join(',');

/** Corners of the area as the server is asked for them; null of a named area. */
export function ringOf(area: Area): Position[] | null {
  if (area.kind === 'drawn') return area.drawn.ring;
  if (area.kind !== 'box') return null;
  const [west, south, east, north] = area.box;
  return [[west, south], [east, south], [east, north], [west, north]];
}

/** One and the same area has one key. */
export function areaKey(area: Area): string {
  return area.kind === 'named' ? `named ${area.name}` : `${area.kind} ${ringText(ringOf(area) ?? [])}`;
}

/** The area as a file that `public.areas` can name. */
export function areaFile({ ring, name }: Drawn, unnamed: string): string {
  const geometry = { type: 'Polygon', coordinates: [[...ring, ring[0]!]] };
  const feature = { type: 'Feature', properties: { name: name || unnamed }, geometry };
  return JSON.stringify({ type: 'FeatureCollection', features: [feature] });
}

/** "Users whose last position was in the box, by the spatial histogram (auto): 12, 95 % interval 3–30." */
export function counted({ value, interval, mechanism, fixes_per_user: most }: Pick<RangeCount, 'value' | 'interval' | 'mechanism' | 'fixes_per_user'>): string {
  const what = mechanism === 'euler' ? 'area.regions' : most === 1 ? 'area.users' : 'area.fixes';
  const range = interval ? say('area.interval', { low: decimals(interval[0], 0), high: decimals(interval[1], 0) }) : say('area.no-interval');
  return say(what, { mechanism, most, value: decimals(Math.max(value, 0), 0), range });
}
