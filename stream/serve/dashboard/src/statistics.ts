/** What a cell says under the chosen statistic, and the classes it falls into. Pure. */

import { decimals, say, type TextKey } from './texts';
import { chosenUnit, fromUnit, inUnit, otherValue, unit } from './units';
import type { AreaCount, Estimate, Hexagon, Measured } from './types';

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
  method?: string;
  outside?: boolean;
  unbounded?: boolean;
  /** The released value crowds the bound of speeds: it is to be read as "or more". */
  atBound?: boolean;
}

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
    return { value, low: value, high: value, method, unbounded: true };
  }
  if (!released) return null;
  const [low, high] = derived?.interval ?? released.interval;
  const found: Shown = { value: (derived ?? released).value, low, high };
  if (derived) found.method = derived.method;
  else if (low === high && released.scale > 0) found.outside = true;
  if (released.at_bound) found.atBound = true;
  if (statistic !== 'spread') return found;
  return { ...found, value: root(found.value), low: root(found.low), high: root(found.high) };
}

/** What earlier releases say of the cell's mean at this hour; null where there are none, and of other statistics. */
export function typicalOf({ estimate }: Hexagon, statistic: Statistic): Shown | null {
  const typical = statistic === 'mean' ? estimate?.typical : undefined;
  if (!typical?.interval) return null;
  const { value, method, interval: [low, high] } = typical;
  return { value, low, high, method };
}

/** How the leading mean differs from the typical one, as the API has it. */
export function fromTypical(hexagon: Hexagon, now: Shown, typical: Shown): Verdict | null {
  const deviation = hexagon.estimate?.deviation;
  if (!deviation?.interval) return null;
  const [low, high] = deviation.interval;
  return { now, reference: typical.value, clear: deviation.clear_error !== undefined, error: deviation.clear_error ?? (high - low) / 2 };
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

/** Class of the value, and how many classes its interval touches: all of them where it is known to miss, or there is none. */
export function classify(now: Shown, breaks: number[], reference: number): { index: number; spans: number } {
  const at = (value: number) => breaks.reduce((index, end) => index + Number(value / reference >= end), 0);
  return { index: at(now.value), spans: now.outside || now.unbounded ? breaks.length + 1 : at(now.high) - at(now.low) + 1 };
}

/** Opacity of a cell whose interval touches that many classes: full only when it touches one. */
export const opacity = (spans: number) => (spans <= 1 ? 0.92 : spans === 2 ? 0.66 : spans === 3 ? 0.48 : 0.3);

/** "23" or, where the interval is narrower than 4, "23.4". */
export function speed(value: number, now: { low: number; high: number; unbounded?: boolean }): string {
  return decimals(inUnit(value), !now.unbounded && inUnit(now.high - now.low) < 4 ? 1 : 0);
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

/** What a value is compared with, for texts: typical or scheduled speeds, or those of a day of that name. */
export interface Versus {
  prefix: 'comparison' | 'comparison.scheduled' | 'comparison.day';
  day?: string;
}

/** "8 % slower than typical" or, of another day, "8 % slower than on Tue, 14 Mar 2017". */
export function relative({ now, reference }: Verdict, { prefix, day = '' }: Versus): string {
  const percent = Math.round((now.value / reference - 1) * 100);
  const key = !percent ? 'same' : percent < 0 ? 'slower' : 'faster';
  return say(`${prefix}.${key}`, { percent: Math.abs(percent), day });
}

/** How a value differs from another, considering all cells of the window: the API's verdict (`stream/serve/differences.py`). */
export interface Verdict {
  now: Shown;
  reference: number;
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
  return !clear && !now.outside && Math.abs(now.value - reference) > error ? `${said}. ${say('comparison.many')}` : said;
}

/** "−2.0" and "0.9": the difference and its error in the chosen unit. */
export function margin({ now, reference, error }: Verdict): { difference: string; error: string } {
  const value = now.value - reference;
  return { difference: (value < 0 ? '−' : '+') + decimals(inUnit(Math.abs(value)), 1), error: decimals(inUnit(error), 1) };
}

export const isNoisy = (number: number | Estimate): number is Estimate => typeof number !== 'number';

/** The weight of a cell: its events or, where only users are counted, its users. */
export const countOf = ({ events, users }: Hexagon): number | Estimate => events ?? users;

/** "1 328", or "about 120 (95 % interval 80–160)" where even counts carry noise. */
export function countText(number: number | AreaCount | undefined): string {
  if (number === undefined) return '–';
  if (typeof number === 'number') return decimals(number, 0);
  if (!number.interval) return decimals(number.value, 0);
  const [low, high] = number.interval.map((end) => decimals(end, 0));
  return say('count.noisy', { value: decimals(number.value, 0), low: low!, high: high! });
}
