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

const clocks = ([first, last]: [number, number]) => [first, last].map((hour) => `${String(hour).padStart(2, '0')}:00`).join('–');

/** "Mean of 12 windows, Monday to Friday, 07:00–09:00, 2 Mar to 31 Mar". */
export function overSaid({ from, to, days, hours }: Over, windows: number, zone: string): string {
  const when = hours[1] - hours[0] < 24 ? [clocks(hours)] : [];
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

/** The fields and the button below the range. `then` gets the days and hours that were chosen. */
export function overForm(chosen: Over | null, then: (days: Over['days'], hours: Over['hours']) => void): HTMLElement {
  const select = (name: string, values: readonly (string | number)[], current: string | number, label: (value: string | number) => string) =>
    make('select', { name }, ...values.map((value) => make('option', { value, selected: value === current }, label(value))));
  const hour = (name: string, first: number, current: number) =>
    select(name, Array.from({ length: 24 }, (_, at) => first + at), current, (value) => `${String(value).padStart(2, '0')}:00`);
  const [first, last] = chosen?.hours ?? [0, 24];
  const fields = [
    select('days', DAYS, chosen?.days ?? 'any', (value) => say(`over.${value as Over['days']}`)),
    hour('first-hour', 0, first),
    hour('last-hour', 1, last),
  ] as const;
  const [days, from, to] = fields;
  const button = make('button', { type: 'button', id: 'over-button' }, say('over.show'));
  const check = () => (button.disabled = Number(from.value) >= Number(to.value));
  const form = make('div', { class: 'range' },
    make('label', {}, say('over.days'), days), make('label', {}, say('over.from'), from), make('label', {}, say('over.to'), to), button);
  form.addEventListener('change', check);
  button.addEventListener('click', () => {
    byId<HTMLDetailsElement>('range').open = false;
    then(days.value as Over['days'], [Number(from.value), Number(to.value)]);
  });
  check();
  return form;
}
