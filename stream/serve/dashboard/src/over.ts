/** The mean over a range of windows: which ones, as the address and people say it, and its cells as a window of their own. */

import { getResolution } from 'h3-js';
import { byId, make } from './dom';
import { say } from './texts';
import { clock, day } from './times';
import type { AreaCount, Estimate, Hexagon, MeanList, Over, WindowCells, WindowSummary } from './types';

const DAYS: Over['days'][] = ['any', 'workday', 'saturday', 'sunday', 'weekend'];

/** "workday.7-9". */
export const overText = ({ days, hours }: Over) => `${days}.${hours.join('-')}`;

export function parseOver(text: string, { from, to }: { from?: string; to?: string }): Over | undefined {
  const [, days, first, last] = /^([a-z]+)\.(\d{1,2})-(\d{1,2})$/.exec(text) ?? [];
  const known = DAYS.find((one) => one === days);
  const hours: [number, number] = [Number(first), Number(last)];
  return known && from && to && hours[0] < hours[1] && hours[1] <= 24 ? { from, to, days: known, hours } : undefined;
}

/** As the API is asked. */
export const overQuery = ({ from, to, days, hours }: Over): Record<string, string> =>
  ({ from, to, hours: hours.join('-'), ...(days === 'any' ? {} : { days }) });

const clockOf = (hour: number) => `${String(hour).padStart(2, '0')}:00`;

/** "Mean of 12 windows, Monday to Friday, 07:00–09:00, 2 Mar to 31 Mar". */
export function overSaid({ from, to, days, hours }: Over, windows: number, zone: string): string {
  const when = hours[1] - hours[0] < 24 ? [hours.map(clockOf).join('–')] : [];
  const parts = [...(days === 'any' ? [] : [say(`over.${days}`)]), ...when, `${day(from, zone)}, ${clock(from, zone)} – ${day(to, zone)}, ${clock(to, zone)}`];
  return [say('over.count', { count: windows }), ...parts].join(', ');
}

const counted = (count: AreaCount | null): number | Estimate | undefined =>
  count === null ? undefined : count.interval === null ? count.value : { value: count.value, raw: count.value, clamped: false, scale: 0, interval: count.interval, unit: '1' };

/** Cells with their means, as a window that lasts as long as the range. `newest`: what is said of it holds for all of them. */
export function windowOf({ cells, together: { events, users } }: MeanList, { from, to }: Over, newest: WindowSummary): WindowCells {
  const marker = newest.marker!;
  const hexagons = [...cells].sort((a, b) => a.windows - b.windows).map(({ cell, excludes, events, users, mean }): Hexagon => ({
    cell,
    excludes,
    resolution: getResolution(cell),
    relation: marker.relation,
    epsilon: marker.epsilon,
    ...(marker.accounting ? { accounting: marker.accounting } : {}),
    window: { start: from, end: to },
    events: counted(events),
    users: counted(users)!,
    status: mean ? 'published' : 'suppressed',
    estimate: mean && { mean: { ...mean, method: 'released' } },
    ...(mean ? { mean: { ...mean, clamped: mean.value !== mean.raw, scale: 0 } } : {}),
  }));
  return { ...newest, window: { start: from, end: to }, histograms: [], marker: { ...marker, statistics: ['mean'] }, hexagons, totals: { events, users } };
}

/** Choose the days and hours below the range. `then` gets what was chosen. */
export function setUpOver(then: (days: Over['days'], hours: Over['hours']) => void): void {
  const [days, from, to] = ['over-days', 'over-from', 'over-to'].map(byId<HTMLSelectElement>) as [HTMLSelectElement, HTMLSelectElement, HTMLSelectElement];
  for (let hour = 0; hour < 24; hour += 1) {
    from.append(make('option', { value: hour }, clockOf(hour)));
    to.append(make('option', { value: hour + 1, selected: hour === 23 }, clockOf(hour + 1)));
  }
  const button = byId<HTMLButtonElement>('over-button');
  byId('over').addEventListener('change', () => (button.disabled = Number(from.value) >= Number(to.value)));
  button.addEventListener('click', () => {
    byId<HTMLDetailsElement>('range').open = false;
    then(days.value as Over['days'], [Number(from.value), Number(to.value)]);
  });
}

/** Show the days and hours whose mean is on display. */
export function showOver({ days, hours }: Pick<Over, 'days' | 'hours'>): void {
  const values = { 'over-days': days, 'over-from': hours[0], 'over-to': hours[1] };
  for (const [id, value] of Object.entries(values)) byId<HTMLSelectElement>(id).value = String(value);
}
