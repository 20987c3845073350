/** Travel times along the lines of a route, between two of its stops: a table in the card of the route, and a file. */

import { travel, travelAddress } from './api';
import { make } from './dom';
import { decimals, say } from './texts';
import { inUnit, unit } from './units';
import type { Along, RouteWay, Travel } from './types';
import type { View } from './view';

/** The stops between which the way is asked for; they stay while other windows of the same route are shown. */
let chosen: { route: string; from?: string; to?: string } = { route: '' };

/** The table of a route with its two choices; filled once the server has answered. */
export function ways(view: View, route: string): HTMLElement {
  if (chosen.route !== route) chosen = { route };
  const body = make('div', { id: 'ways-body' });
  void fill(view, body);
  return body;
}

async function fill(view: View, body: HTMLElement): Promise<void> {
  const { route, from, to } = chosen;
  const along: Along = { route, from, to, over: view.over, window: view.window?.window.start };
  const [lines, whole] = await Promise.all([travel(view.feed, along), travel(view.feed, { ...along, from: undefined, to: undefined })]).catch(() => [[], []]);
  const stops = [...new Set(whole.flatMap((line) => line.stops))];
  const known = lines.filter((line) => line.now ?? line.mean);
  if (!whole.length) return;
  const choice = (end: 'from' | 'to') => {
    const names = [say(`route.${end}-end`), ...stops];
    const change = ({ target }: Event) => {
      chosen = { ...chosen, [end]: (target as HTMLSelectElement).value || undefined };
      void fill(view, body);
    };
    const options = names.map((name, at) => make('option', { value: at ? name : '', selected: at > 0 && name === chosen[end] }, name));
    return make('label', {}, say(`route.${end}`), make('select', { name: `stop-${end}`, change }, ...options));
  };
  const focused = document.activeElement instanceof HTMLSelectElement ? document.activeElement.name : '';
  body.replaceChildren(
    make('h3', {}, say('route.title')),
    ...(stops.length ? [make('div', { class: 'range' }, choice('from'), choice('to'))] : []),
    ...(known.length ? [tableOf(known), make('p', { class: 'quiet' }, say('route.note')),
      make('p', {}, make('a', { href: travelAddress(view.feed, along), download: `route-${route}.csv` }, say('route.file')))]
      : [make('p', { class: 'quiet' }, say('route.none'))]),
  );
  body.querySelector<HTMLElement>(`select[name="${focused}"]`)?.focus();
}

/** Of each direction a row of what is known now, typically, and by the timetable. */
function tableOf(lines: RouteWay[]): HTMLElement {
  const head = [make('td'), ...(['minutes', 'speed'] as const).map((name) => make('th', { scope: 'col' }, say(`route.${name}`, { unit: unit() })))];
  const groups = lines.map((line) => {
    const { metres, measured_metres, to_stop } = line;
    const share = say('route.measured', { km: decimals(metres / 1000, 1), percent: Math.round((100 * measured_metres) / metres) });
    const kinds = (['mean', 'now', 'typical', 'scheduled'] as const).filter((kind) => line[kind]);
    const rows = kinds.map((kind) => make('tr', {}, make('th', { scope: 'row' }, say(`route.${kind}`)), ...told(line[kind]!).map((text) => make('td', { class: 'number' }, text))));
    const direction = make('th', { scope: 'rowgroup', colspan: 3 }, ...(to_stop ? ['→ ', make('bdi', {}, to_stop), ' '] : []), make('span', { class: 'quiet' }, share));
    return make('tbody', {}, make('tr', {}, direction), ...rows);
  });
  return make('table', { class: 'small', id: 'ways' }, make('thead', {}, make('tr', {}, ...head)), ...groups);
}

/** Minutes and speed, each with its interval where it has one. */
function told(travel: Travel): string[] {
  const range = (interval: [number | null, number | null] | undefined, written: (number: number) => string) => {
    if (!interval) return '';
    const [low, high] = interval.map((end) => end !== null && written(end));
    return ` (${high ? `${low}–${high}` : say('route.open', { low: String(low) })})`;
  };
  const minutes = (number: number) => decimals(number, number < 10 ? 1 : 0);
  const speed = (number: number) => decimals(inUnit(number), 0);
  const [less, more] = travel.at_bound ? ['≤\u00a0', '≥\u00a0'] : ['', ''];
  return [
    less + minutes(travel.minutes) + range(travel.minutes_interval, minutes),
    more + speed(travel.km_h) + range(travel.km_h_interval, speed),
  ];
}
