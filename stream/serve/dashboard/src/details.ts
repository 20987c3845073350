/** The card of the selected cell. */

import { alertsOf } from './alerts';
import { history, reasonOf } from './api';
import { cellName, chip, isolated, make } from './dom';
import { STATISTICS, comparison, countText, interval, isNobody, reading as read, sentence, shown, type Statistic } from './statistics';
import { decimals, plain, say } from './texts';
import { when } from './times';
import { inUnit, unit } from './units';
import type { Hexagon } from './types';
import type { Reading, View } from './view';

/** The main line of a reading with a mark of its kind; where there is no reading, why. */
export function statement(view: View, cell: string): HTMLElement[] {
  const hexagon = view.cells.get(cell);
  if (!hexagon) return [make('p', { class: 'reading' }, say('reading.none')), make('p', { class: 'quiet' }, say(`reason.none.${view.relation}`))];
  const reading = view.read(hexagon);
  const { now, verdict } = reading;
  if (!now && isNobody(hexagon)) return [make('p', { class: 'reading' }, say('reading.nobody')), make('p', { class: 'quiet' }, say('reason.nobody'))];
  if (!now) {
    return [make('p', { class: 'reading' }, say('reading.not-published')), make('p', { class: 'quiet' }, suppressed(hexagon.users, hexagon.relation))];
  }
  return [
    make('p', { class: 'reading' }, sentence(now), chip(now.method ? 'modelled' : 'raw')),
    ...(now.atBound ? [make('p', { class: 'quiet' }, say('reading.at-bound', { upper: decimals(inUnit(hexagon.clipping?.upper ?? view.upper), 0), unit: unit() }))] : []),
    make('p', { class: 'quiet' }, say(`${view.statistic}.name`), verdict ? `, ${comparison(verdict, view.versus)}` : ''),
    ...beside(view, reading),
    ...timetabled(view, cell),
    ...alertsOf(view, cell),
  ];
}

/** The public reason why a cell was not published. */
const suppressed = (users: Hexagon['users'] | null, relation: Hexagon['relation']) => say(`reason.not-published.${relation}`, { count: typeof users === 'number' ? users : 0 });

/** What the value is compared with, or why there is nothing. */
function beside(view: View, { hexagon, typical, then }: Reading): HTMLElement[] {
  const line = (text: string) => [make('p', { class: 'quiet' }, text)];
  if (then === null) return typical ? line(say('typical.value', { value: read(typical), unit: unit(), interval: interval(typical) })) : [];
  const { other } = view.otherDay!;
  if (!other || then === 'window') return line(view.againstDay());
  const window = when(other.window, view.zone);
  if (typeof then !== 'string') return [make('p', { class: 'quiet' }, say('day.value', { window, reading: sentence(then) }), chip('raw'))];
  const relation = other.marker?.relation ?? 'values';
  const reason = then === 'suppressed' ? ` ${suppressed(view.usersThen(hexagon.cell), relation)}` : then === 'none' ? ` ${say(`reason.none.${relation}`)}` : '';
  return line(say(`day.cell.${then}`, { window }) + reason);
}

/** "Scheduled in these hours: 25.1 km/h". */
function timetabled(view: View, cell: string): HTMLElement[] {
  const speed = view.scheduledIn(cell);
  return speed === undefined ? [] : [make('p', { class: 'quiet' }, say('scheduled.value', { value: decimals(inUnit(speed), 1), unit: unit() }))];
}

export function cellCard(view: View, cell: string): HTMLElement[] {
  const hexagon = view.cells.get(cell);
  const past = make('div', {}, make('p', { class: 'quiet' }, say('cell.loading')));
  void fillPast(view, cell, past);
  const parts: HTMLElement[] = [
    ...title(view, cell),
    make('p', { class: 'quiet' }, view.said),
    ...statement(view, cell),
  ];
  if (hexagon) {
    parts.push(
      make('dl', {}, ...(hexagon.events === undefined ? [] : pair('cell.events', countText(hexagon.events))), ...pair('cell.users', countText(hexagon.users)),
        ...pair('cell.epsilon', plain(hexagon.epsilon)), ...pair('cell.resolution', String(hexagon.resolution))),
      allStatistics(view, cell),
    );
  }
  parts.push(make('h3', {}, say('cell.past')), past);
  return parts;
}

/** The name of the cell, its index and the routes that cross it. */
function title(view: View, cell: string): HTMLElement[] {
  const routes = view.names?.routes(cell) ?? [];
  if (!view.names?.of(cell)) return [make('h2', {}, `${say('cell.title')} `, make('code', {}, cell))];
  const crossing = make('p', { class: 'quiet' }, ...isolated('place.crossed', { routes }));
  return [make('h2', {}, ...cellName(view, cell)), ...(routes.length ? [crossing] : [])];
}

const pair = (term: 'cell.events' | 'cell.users' | 'cell.epsilon' | 'cell.resolution', text: string) => [
  make('dt', {}, say(term)),
  make('dd', {}, text),
];

function allStatistics(view: View, cell: string): HTMLElement {
  const hexagon = view.cells.get(cell)!;
  const rows = view.statistics().flatMap((statistic: Statistic) => {
    const released = shown(hexagon, statistic, 'raw');
    const modelled = shown(hexagon, statistic, 'estimate');
    const estimate = hexagon[STATISTICS[statistic]];
    const clamped = estimate?.clamped && statistic !== 'spread' ? say('cell.clamped', { raw: decimals(inUnit(estimate.raw), 0) }) : '';
    const name = make('span', {}, say(`${statistic}.short`));
    const lines = released ? [line([name, chip('raw')], read(released), interval(released), clamped)] : [];
    if (modelled?.method) lines.push(line([...(released ? [] : [name]), chip('modelled')], read(modelled), interval(modelled), say(modelled.method === 'kalman' ? 'cell.by-windows' : 'cell.by-moments')));
    return lines;
  });
  if (!rows.length) return make('span');
  const head = [say('cell.statistic'), unit(), say('cell.interval'), say('cell.note')].map((label) => make('th', { scope: 'col' }, label));
  return make('table', { class: 'small' }, make('thead', {}, make('tr', {}, ...head)), make('tbody', {}, ...rows));
}

const line = (label: (string | HTMLElement)[], value: string, range: string, note: string) =>
  make('tr', {}, make('th', { scope: 'row' }, ...label), make('td', { class: 'number' }, value), make('td', { class: 'number' }, range),
    make('td', { class: 'quiet' }, note));

async function fillPast(view: View, cell: string, target: HTMLElement): Promise<void> {
  try {
    const [releases, { sparkline }] = await Promise.all([history(view.feed, cell), import('./sparkline')]);
    const current = view.window?.window.start ?? '';
    target.replaceChildren(sparkline(releases, view.statistic, view.shownKind, view.zone, current, view.upper));
  } catch (error) {
    target.replaceChildren(make('p', { class: 'quiet' }, say('cell.past-failed', { reason: reasonOf(error) })));
  }
}
