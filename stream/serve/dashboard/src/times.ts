/** Windows as people say them, in the feed's time zone. Pure. */

import { once } from './once';
import { locale, say } from './texts';
import type { Bounds } from './types';

const formats = new Map<string, Intl.DateTimeFormat>();

/** The zone, or UTC where this browser knows none of that name. */
export const known = once((zone: string): string => {
  try {
    return new Intl.DateTimeFormat('en-GB', { timeZone: zone }).resolvedOptions().timeZone;
  } catch {
    return 'UTC';
  }
});

/** The zone in which times are written, by its name in the feed; UTC where this browser does not know it. */
export const zoneName = (zone: string) => (known(zone) === 'UTC' ? 'UTC' : zone);

/** Made once of each kind: it takes longer to make one than to write a hundred times with it. */
function format(zone: string, options: Intl.DateTimeFormatOptions, language = locale): Intl.DateTimeFormat {
  const key = zone + language + JSON.stringify(options);
  const kept = formats.get(key) ?? new Intl.DateTimeFormat(language, { timeZone: known(zone), ...options });
  formats.set(key, kept);
  return kept;
}

const CLOCK: Intl.DateTimeFormatOptions = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' };
const DAY: Intl.DateTimeFormatOptions = { weekday: 'short', day: 'numeric', month: 'short', year: 'numeric' };

const MINUTE = 60_000;

/** What the clocks of the zone show, "02:00"; with seconds where they are not 0. */
export const localClock = (time: string, zone: string) =>
  format(zone, Date.parse(time) % MINUTE ? { ...CLOCK, second: '2-digit' } : CLOCK).format(new Date(time));

/** Minutes by which clocks are set back anywhere. */
const SET_BACK = [30, 60, 120];

/** Whether the clocks of the zone show this time twice that day. */
function isTwice(time: string, zone: string): boolean {
  const shown = (moment: number) => format(zone, { ...DAY, ...CLOCK }).format(moment);
  const moment = Date.parse(time);
  return SET_BACK.some((minutes) => [moment - minutes * MINUTE, moment + minutes * MINUTE].some((other) => shown(other) === shown(moment)));
}

/** "02:00"; with what sets it apart, "02:00 GMT+1", where the clocks show it twice. */
export function clock(time: string, zone: string): string {
  if (!isTwice(time, zone)) return localClock(time, zone);
  const parts = format(zone, { ...CLOCK, timeZoneName: 'short' }).formatToParts(new Date(time));
  return `${localClock(time, zone)} ${parts.find(({ type }) => type === 'timeZoneName')!.value}`;
}

export const day = (time: string, zone: string) => format(zone, DAY).format(new Date(time));
export const weekday = (time: string, zone: string) => format(zone, { weekday: 'short', day: 'numeric' }).format(new Date(time));

/** "2017-03-14". */
export const localDate = (time: string, zone: string) =>
  format(zone, { year: 'numeric', month: '2-digit', day: '2-digit' }, 'en-CA').format(new Date(time));

/** "14:00–15:00". */
export const hours = (window: Bounds, zone: string) => `${clock(window.start, zone)}–${clock(window.end, zone)}`;

/** "Fri, 20 Nov 2026, 14:00–15:00". */
export const when = (window: Bounds, zone: string) => `${day(window.start, zone)}, ${hours(window, zone)}`;

type Unit = 'minute' | 'hour' | 'day' | 'week' | 'month' | 'year';

/** Each unit with its minutes, and the number of minutes from which the next unit fits better. */
const UNITS: [unit: Unit, minutes: number, until: number][] = [
  ['minute', 1, 90],
  ['hour', 60, 48 * 60],
  ['day', 1_440, 21 * 1_440],
  ['week', 7 * 1_440, 63 * 1_440],
  ['month', 30.44 * 1_440, 730 * 1_440],
  ['year', 365.25 * 1_440, Infinity],
];

function whole(milliseconds: number): [count: number, unit: Unit] {
  const minutes = Math.max(Math.round(milliseconds / 60_000), 0);
  const [unit, size] = UNITS.find(([, , until]) => minutes < until)!;
  return [Math.round(minutes / size), unit];
}

/** "3 minutes", "2 hours", "9 months": whole units, the largest that fits. */
export function span(milliseconds: number): string {
  const [count, unit] = whole(milliseconds);
  if (!count) return say('span.minute');
  return new Intl.NumberFormat(locale, { style: 'unit', unit, unitDisplay: 'long' }).format(count);
}

/** "3 minutes ago", "9 months ago". */
export function ago(milliseconds: number): string {
  const [count, unit] = whole(milliseconds);
  if (!count) return say('ago.minute');
  return new Intl.RelativeTimeFormat(locale, { numeric: 'always' }).format(-count, unit);
}

export const length = (window: Bounds) => Date.parse(window.end) - Date.parse(window.start);
