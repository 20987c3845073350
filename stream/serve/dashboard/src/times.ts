/** Windows as people say them, in the feed's time zone. Pure. */

import type { Bounds } from './types';

const formats = new Map<string, Intl.DateTimeFormat>();

/** The zone, or UTC where this browser knows none of that name. */
export function known(zone: string): string {
  try {
    return new Intl.DateTimeFormat('en-GB', { timeZone: zone }).resolvedOptions().timeZone;
  } catch {
    return 'UTC';
  }
}

function format(zone: string, options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = zone + JSON.stringify(options);
  const found = formats.get(key) ?? new Intl.DateTimeFormat('en-GB', { timeZone: known(zone), ...options });
  formats.set(key, found);
  return found;
}

const CLOCK: Intl.DateTimeFormatOptions = { hour: '2-digit', minute: '2-digit' };
const DAY: Intl.DateTimeFormatOptions = { weekday: 'short', day: 'numeric', month: 'short', year: 'numeric' };

export const clock = (time: string, zone: string) => format(zone, CLOCK).format(new Date(time));
export const day = (time: string, zone: string) => format(zone, DAY).format(new Date(time));
export const weekday = (time: string, zone: string) => format(zone, { weekday: 'short', day: 'numeric' }).format(new Date(time));

/** "14:00–15:00". */
export const hours = (window: Bounds, zone: string) => `${clock(window.start, zone)}–${clock(window.end, zone)}`;

/** "Fri, 20 Nov 2026, 14:00–15:00". */
export const when = (window: Bounds, zone: string) => `${day(window.start, zone)}, ${hours(window, zone)}`;

/** "3 min", "2 h", "9 years": whole units, the largest that fits. */
export function span(milliseconds: number): string {
  const minutes = Math.max(Math.round(milliseconds / 60_000), 0);
  if (minutes < 1) return 'less than a minute';
  if (minutes < 90) return `${minutes} min`;
  const hoursPast = Math.round(minutes / 60);
  if (hoursPast < 48) return `${hoursPast} h`;
  const days = Math.round(hoursPast / 24);
  return days < 730 ? `${days} days` : `${Math.round(days / 365)} years`;
}

export const length = (window: Bounds) => Date.parse(window.end) - Date.parse(window.start);
