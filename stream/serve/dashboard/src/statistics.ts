/** What a cell says under the chosen statistic, and the classes it falls into. Pure. */

import { decimals, say, type TextKey } from './texts';
import { chosenUnit, fromUnit, inUnit, otherValue, unit } from './units';
import type { Estimate, Hexagon, Measured } from './types';

export type Statistic = 'mean' | 'moving' | 'p50' | 'p85' | 'spread';
/** The leading estimates, or the values as they were released. */
export type Kind = 'estimate' | 'raw';
/** What colours show: the window, what is typical of its hour, or how they differ; or, instead, how another day or the timetable differs. */
export type Scheme = 'now' | 'typical' | 'difference' | 'day' | 'scheduled';
export const COMPARING: readonly Scheme[] = ['difference', 'day', 'scheduled'];

/** Every statistic with the released number that it is read from. */
export const STATISTICS: Record<Statistic, Measured> =
  { mean: 'mean', moving: 'moving_mean', p50: 'p50', p85: 'p85', spread: 'variance' };

/**
 * A number with its 95 % interval, in km/h. `method` names the model where it is not the released value. `outside`:
 * the noise carried it out of the possible range, interval and all, so that nothing is left of it but a bound. `unbounded`:
 * its model gives no interval, so `low` and `high` are the value.
 */
export interface Shown {
  value: number;
  low: number;
  high: number;
  /** Standard deviation of the noise, and how many of them the 95 % error of a difference is at most. */
  deviation: number;
  quantile: number;
  method?: string;
  outside?: boolean;
  unbounded?: boolean;
  /** The released value crowds the bound of speeds: it is to be read as "or more". */
  atBound?: boolean;
}

/** Standard deviations within which 95 % of normal noise lies, and of any sum of independent Laplace noise at least 95 %. */
export const NORMAL = 1.96;
export const LAPLACE = 2.12;

const root = (number: number) => Math.sqrt(Math.max(number, 0));

/** Whether the cell was published though nobody is estimated there. */
export const isNobody = ({ status, estimate }: Hexagon) => status === 'published' && !estimate;

/** The value to display; null where the cell was not published or has no such statistic. */
export function shown(hexagon: Hexagon, statistic: Statistic, kind: Kind): Shown | null {
  const name = STATISTICS[statistic];
  const released = hexagon[name];
  if (hexagon.status !== 'published') return null;
  const leading = kind === 'estimate' ? hexagon.estimate?.[name] : undefined;
  if (kind === 'estimate' && !leading) return null;
  const derived = leading?.method === 'released' ? undefined : leading;
  if (derived && !derived.interval) {
    const { value, method } = derived;
    return { value, low: value, high: value, deviation: 0, quantile: NORMAL, method, unbounded: true };
  }
  if (!released) return null;
  const [low, high] = derived?.interval ?? released.interval;
  const gaussian = Boolean(derived) || hexagon.accounting === 'zcdp';
  const quantile = gaussian ? NORMAL : LAPLACE;
  // Where a mean is a ratio of noisy numbers, its interval says more than one scale.
  const deviation = Math.max((high - low) / (2 * quantile), derived ? 0 : released.scale * (gaussian ? 1 : Math.SQRT2));
  const found: Shown = { value: (derived ?? released).value, low, high, deviation, quantile };
  if (derived) found.method = derived.method;
  else if (low === high && released.scale > 0) found.outside = true;
  if (released.at_bound) found.atBound = true;
  if (statistic !== 'spread') return found;
  return { ...found, value: root(found.value), low: root(found.low), high: root(found.high) };
}

/** What a value is compared with: the typical one, the scheduled one, or the value as released on another day. */
export type Reference = Pick<Shown, 'value' | 'deviation'> & Partial<Pick<Shown, 'low' | 'high' | 'quantile' | 'outside'>>;

/** Whether something can be said relative to it: it is above 0, and known to within itself. */
const isKnown = (value: number, low: number, high: number) => value > 0 && high - low <= value;

/** What earlier releases say of the cell's mean at this hour; null where there are none, and of other statistics. */
export function typicalOf({ estimate }: Hexagon, statistic: Statistic): Shown | null {
  const typical = statistic === 'mean' ? estimate?.typical : undefined;
  if (!typical?.interval) return null;
  const { value, method, interval: [low, high] } = typical;
  return { value, low, high, deviation: (high - low) / (2 * NORMAL), quantile: NORMAL, method };
}

/**
 * The scheduled speed as something to compare a mean with. It has no noise. Speeds above the bound of the cell are
 * measured as the bound, so a higher scheduled speed cannot be compared with.
 */
export const scheduledOf = (speed: number | undefined, statistic: Statistic, upper: number): Reference | null =>
  speed === undefined || statistic !== 'mean' || speed > upper ? null : { value: speed, deviation: 0 };

/** Why a cell has no value of another day. */
export type Missing = 'none' | 'suppressed' | 'area' | 'settings' | 'statistic' | 'uncertain';

const areaOf = ({ excludes = [] }: Hexagon) => [...excludes].sort().join();

/** What a number of the cell is about: equal where two windows measured the same. Ranges of a cell's own follow its traffic, so that
 * they differ from window to window; what counts is whether there are such ranges. */
const settingsOf = ({ relation, weight, clipping }: Hexagon) => [relation, weight, Boolean(clipping)].join();

/**
 * What was released of the same area on another day, or why there is nothing to compare with. `overlaps`: whether cells of
 * that day share ground with one that is not among them.
 */
export function thenOf(
  hexagon: Hexagon, other: Hexagon | undefined, statistic: Statistic, overlaps: (hexagon: Hexagon) => boolean,
): Shown | Missing {
  if (!other) return overlaps(hexagon) ? 'area' : 'none';
  if (areaOf(hexagon) !== areaOf(other)) return 'area';
  if (other.status === 'published' && settingsOf(hexagon) !== settingsOf(other)) return 'settings';
  const then = shown(other, statistic, 'raw');
  if (!then) return other.status === 'published' ? 'statistic' : 'suppressed';
  return then.outside || !isKnown(then.value, then.low, then.high) ? 'uncertain' : then;
}

/** Upper ends of all classes but the last, as shares of the typical value. */
export const RELATIVE_BREAKS = [0.7, 0.9, 1.1, 1.3];
const ALIKE = { difference: 'legend.same', day: 'legend.alike', scheduled: 'legend.on-schedule' } as const;
export const relativeLabels = (scheme: keyof typeof ALIKE): TextKey[] =>
  ['legend.slower', 'legend.bit-slower', ALIKE[scheme], 'legend.bit-faster', 'legend.faster', 'legend.within'];

/** Class ends in the unit of speeds, narrow where city traffic is. */
const SPEEDS = { 'km/h': [10, 15, 20, 25, 30, 40, 50, 70, 90, 110], mph: [5, 10, 15, 20, 25, 30, 40, 50, 60, 70] };
const SPREADS = [2.5, 5, 7.5, 10, 15, 20, 30, 40];

/** Least possible value: speeds are clipped to [0, upper], other values to bounds of their own. */
const bottomOf = (statistic: Statistic) => (statistic === 'spread' ? 0 : (otherValue()?.lower ?? 0));

/** Largest possible value: a standard deviation is at most half of the range. */
export const topOf = (statistic: Statistic, upper: number) => (statistic === 'spread' ? (upper - (otherValue()?.lower ?? 0)) / 2 : upper);

/** Upper ends of all classes but the last, as released but round as they are said, for values that are clipped to [.., upper]. */
export function absoluteBreaks(statistic: Statistic, upper: number): number[] {
  const [bottom, top] = [bottomOf(statistic), topOf(statistic, upper)];
  const ends = otherValue() ? evenly(bottom, top) : (statistic === 'spread' ? SPREADS : SPEEDS[chosenUnit()]).map(fromUnit);
  return ends.filter((end) => end < top);
}

/** Round numbers between both, as far apart as makes at most ten classes. */
function evenly(bottom: number, top: number): number[] {
  const power = 10 ** Math.floor(Math.log10((top - bottom) / 10));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => (top - bottom) / size <= 10)!;
  const first = Math.floor(bottom / step + 1e-9) + 1;
  return Array.from({ length: 10 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

export function absoluteLabels(statistic: Statistic, breaks: number[], top: number): string[] {
  const ends = [bottomOf(statistic), ...breaks, top];
  return ends.slice(1).map((end, index) => `${plain(ends[index]!)}–${plain(end)}`);
}

function plain(kmh: number): string {
  const tenths = Math.round(inUnit(kmh) * 10);
  return decimals(tenths / 10, tenths % 10 ? 1 : 0);
}

/** Index of the class that holds `value`. */
export function classOf(value: number, breaks: number[]): number {
  let index = 0;
  while (index < breaks.length && value >= breaks[index]!) index += 1;
  return index;
}

/** Class of the value, and how many classes its interval touches: all of them where it is known to miss, or there is none. */
export function classify(now: Shown, breaks: number[], reference: number): { index: number; spans: number } {
  const at = (value: number) => classOf(value / reference, breaks);
  return { index: at(now.value), spans: now.outside || now.unbounded ? breaks.length + 1 : at(now.high) - at(now.low) + 1 };
}

/** Opacity of a cell whose interval touches that many classes: full only when it touches one. */
export const opacity = (spans: number) => (spans <= 1 ? 0.92 : spans === 2 ? 0.66 : spans === 3 ? 0.48 : 0.3);

/** "23" or, where the interval is narrower than 4, "23.4". */
export function speed(value: number, now: { low: number; high: number; unbounded?: boolean }): string {
  return decimals(inUnit(value), !now.unbounded && inUnit(now.high - now.low) < 4 ? 1 : 0);
}

/** The sum of a number of several cells, from raw values, with its 95 % error by noise (0: exact); null where it is not released. */
export function totalOf(cells: Iterable<Hexagon>, name: 'events' | 'users'): { value: number; error: number } | null {
  let [value, variance, quantile, known] = [0, 0, LAPLACE, false];
  for (const hexagon of cells) {
    const count = hexagon[name];
    if (count === undefined) continue;
    known = true;
    if (!isNoisy(count)) value += count;
    else {
      const gaussian = hexagon.accounting === 'zcdp';
      if (gaussian) quantile = NORMAL;
      value += count.raw;
      variance += count.scale ** 2 * (gaussian ? 1 : 2);
    }
  }
  return known ? { value: Math.max(value, 0), error: quantile * Math.sqrt(variance) } : null;
}

/** "23" or, where the released value crowds the bound of speeds, "≥ 23". */
export const reading = (now: Shown) => (now.atBound ? '≥\u00a0' : '') + speed(now.value, now);

/** "19–27", or "–" where there is none. */
export const interval = (now: Shown) => (now.unbounded ? '–' : `${speed(now.low, now)}–${speed(now.high, now)}`);

/** "23 km/h, 95 % interval 19–27, noise from privacy", or "…, of a model". */
export const sentence = (now: Shown) =>
  now.unbounded
    ? say('reading.unbounded', { value: reading(now), unit: unit() })
    : now.outside
      ? say('reading.outside', { value: speed(now.value, now), unit: unit() })
      : say(now.method ? 'reading.modelled' : 'reading', { value: reading(now), unit: unit(), low: speed(now.low, now), high: speed(now.high, now) });

/** How far the value is from another in km/h, and the 95 % error of that by noise. Both are as released. */
export function difference(now: Shown, other: Reference): { value: number; error: number } {
  const deviation = Math.hypot(...deviations(now, other));
  return { value: now.value - other.value, error: Math.max(now.quantile, other.quantile ?? 0) * deviation };
}

/** Standard deviations of the noise of both. Of an interval, the side that faces the other value counts where it is longer. */
export function deviations(now: Shown, other: Reference): [number, number] {
  const value = now.value - other.value;
  return [facing(now, -value), facing(other, value)];
}

/** Standard deviation of the noise towards a value that lies in the direction of `to`. */
function facing({ value, low = value, high = value, deviation, quantile = NORMAL }: Reference, to: number): number {
  return Math.max(deviation, (to < 0 ? value - low : high - value) / quantile);
}

/** What a value is compared with, for texts: typical or scheduled speeds, or those of a day of that name. */
export interface Versus {
  prefix: 'comparison' | 'comparison.scheduled' | 'comparison.day';
  day?: string;
}

/** "8 % slower than typical" or, of another day, "8 % slower than on Tue, 14 Mar 2017". */
export function relative({ now, reference }: Verdict, { prefix, day = '' }: Versus): string {
  const percent = Math.round((now.value / reference.value - 1) * 100);
  const key = !percent ? 'same' : percent < 0 ? 'slower' : 'faster';
  return say(`${prefix}.${key}`, { percent: Math.abs(percent), day });
}

/** How a released value differs from another, considering all cells of the window. */
export interface Verdict {
  now: Shown;
  reference: Reference;
  /** Whether noise does not explain the difference. */
  clear: boolean;
  /** Error of the difference by noise, km/h. */
  error: number;
}

/** "8 % slower than typical: −2.0 ± 0.9 km/h as released, the error being noise"; not clear: of so many cells, noise explains this one. */
export function comparison(verdict: Verdict, versus: Versus): string {
  const { now, reference, clear, error } = verdict;
  const within = say(`${versus.prefix}.within`, { day: versus.day ?? '' });
  const said = say(versus.prefix === 'comparison' ? 'comparison.of.typical' : 'comparison.of', {
    comparison: clear ? relative(verdict, versus) : within,
    ...margin(verdict),
    unit: unit(),
  });
  return !clear && !now.outside && Math.abs(now.value - reference.value) > error ? `${said}. ${say('comparison.many')}` : said;
}

/** "−2.0" and "0.9": the difference and its error in the chosen unit. */
export function margin({ now, reference, error }: Verdict): { difference: string; error: string } {
  const value = now.value - reference.value;
  return { difference: (value < 0 ? '−' : '+') + decimals(inUnit(Math.abs(value)), 1), error: decimals(inUnit(error), 1) };
}

export const isNoisy = (number: number | Estimate): number is Estimate => typeof number !== 'number';

/** The weight of a cell: its events or, where only users are counted, its users. */
export const countOf = ({ events, users }: Hexagon): number | Estimate => events ?? users;

/** "1 328", or "about 120 (95 % interval 80–160)" where even counts carry noise. */
export function countText(number: number | Estimate | undefined): string {
  if (number === undefined) return '–';
  if (!isNoisy(number)) return decimals(number, 0);
  const [low, high] = number.interval.map((end) => decimals(end, 0));
  return say('count.noisy', { value: decimals(number.value, 0), low: low!, high: high! });
}
