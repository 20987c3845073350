/** The released statistics of an area's cells together, as the server computes them for named and drawn areas alike. */

import { ApiError, area, drawnArea, travel } from './api';
import { areaKey, ringOf, type Area } from './area';
import { cellName, chip, isolated, make } from './dom';
import { LAPLACE, sentence, type Shown } from './statistics';
import { decimals, say } from './texts';
import { inUnit, unit } from './units';
import type { AreaStatistics, RouteWay } from './types';
import type { View } from './view';

const ROUTE = 'route:';
const MOST_CELLS = 3;

type Then = (answer: AreaStatistics | null, reading: string) => void;

/** "Route 10" of "route:10"; any other name as it is. Names are isolated, so that their direction changes nothing around them. */
export const areaTitle = (name: string): Node[] => (name.startsWith(ROUTE) ? isolated('area.route', { name: [name.slice(ROUTE.length)] }) : [make('bdi', {}, name)]);

/** The same as text, to be searched. */
export const areaText = (name: string): string => (name.startsWith(ROUTE) ? say('area.route', { name: name.slice(ROUTE.length) }) : name);

/** `then` gets the answer, null of a failure, and what it says first; `choose` opens one of the cells in which a small area lies. */
export function together(view: View, open: Area, then: Then, choose: (cell: string) => void): HTMLElement {
  const [key, start] = [areaKey(open), view.window?.window.start ?? ''];
  const body = make('div', { 'data-area': key, 'data-window': start });
  // The answer stays while it is asked for again; that of another window would stand under the wrong time.
  const before = [...document.querySelectorAll<HTMLElement>('#details-body [data-area]')].find(
    ({ dataset }) => dataset.area === key && dataset.window === start,
  );
  body.append(...(before?.childNodes.length ? before.childNodes : [make('p', { class: 'quiet' }, say('cell.loading'))]));
  void fill(view, open, body, then, choose);
  return body;
}

async function fill(view: View, open: Area, target: HTMLElement, then: Then, choose: (cell: string) => void): Promise<void> {
  const start = view.window?.window.start;
  const key = areaKey(open);
  const isLate = () => !target.isConnected || view.window?.window.start !== start || !view.area || areaKey(view.area) !== key;
  try {
    const found = await (open.kind === 'named' ? area(view.feed, open.name, start) : drawnArea(view.feed, ringOf(open)!, start));
    const ways = found.kind === 'route' && start ? await travel(view.feed, found.name!.slice(ROUTE.length), start).catch(() => []) : [];
    if (isLate()) return;
    const around = found.cells ? [] : cellsAround(view, found);
    const reading = readingOf(found, around);
    target.replaceChildren(...(found.cells ? answers(found, reading) : nothing(view, around, reading, choose)), ...traveled(ways));
    then(found, reading);
  } catch (error) {
    if (isLate()) return;
    const reason = error instanceof ApiError ? error.message : say('failed.server');
    const reading = say('area.failed', { reason });
    target.replaceChildren(make('p', { class: 'problem' }, reading));
    then(null, reading);
  }
}

function meanOf({ estimate }: AreaStatistics): Shown | null {
  if (!estimate) return null;
  const [low, high] = estimate.interval;
  return { value: estimate.value, low, high, deviation: (high - low) / (2 * LAPLACE), quantile: LAPLACE, outside: low === high, atBound: estimate.at_bound,
    ...(estimate.method === 'released' ? {} : { method: estimate.method }) };
}

/** The mean, or why there is none. */
function readingOf(found: AreaStatistics, around: string[]): string {
  if (!found.cells) return say(around.length ? 'area.smaller' : 'area.empty');
  const mean = meanOf(found);
  return mean ? sentence(mean) : say(found.published ? 'area.open' : 'area.none');
}

function answers({ kind, cells, published, events, users, estimate }: AreaStatistics, reading: string): HTMLElement[] {
  const { value, interval } = (events ?? users)!;
  const range = interval
    ? say('area.noisy', { low: decimals(interval[0], 0), high: decimals(interval[1], 0) })
    : say('area.exact');
  return [
    estimate ? make('p', { class: 'reading', id: 'area-mean' }, reading, chip(estimate.method === 'released' ? 'raw' : 'modelled')) : make('p', { class: 'reading' }, reading),
    make('p', { class: 'quiet' }, say(kind === 'route' ? 'area.route-mean' : 'area.mean', { published, cells })),
    make('p', {}, say(events ? 'area.events' : 'area.cell-users', { value: decimals(value, 0), range })),
  ];
}

/** How long the ways along the lines of a route take, from end to end. */
function traveled(ways: RouteWay[]): HTMLElement[] {
  const known = ways.filter(({ now }) => now);
  if (!known.length) return [];
  const head = (['route.line', 'route.minutes', 'route.scheduled'] as const).map((key) => make('th', { scope: 'col' }, say(key)));
  const rows = known.map(({ metres, measured_metres, now, scheduled }) => {
    const [low, high] = now!.minutes_interval;
    const range = high === null ? say('route.open', { low: decimals(low, 0) }) : `${decimals(low, 0)}–${decimals(high, 0)}`;
    const share = say('route.measured', { km: decimals(metres / 1000, 1), percent: Math.round((100 * measured_metres) / metres) });
    const [less, more] = now!.at_bound ? ['≤\u00a0', '≥\u00a0'] : ['', ''];
    return make('tr', {}, make('th', { scope: 'row' }, share),
      make('td', { class: 'number' }, `${less}${decimals(now!.minutes, 1)} (${range})`, make('br'), `${more}${decimals(inUnit(now!.km_h), 0)} ${unit()}`),
      make('td', { class: 'number' }, scheduled ? decimals(scheduled.minutes, 1) : '–'));
  });
  return [
    make('h3', {}, say('route.title')),
    make('table', { class: 'small', id: 'ways' }, make('thead', {}, make('tr', {}, ...head)), make('tbody', {}, ...rows)),
    make('p', { class: 'quiet' }, say('route.note')),
  ];
}

/** The cells on display at the corners of an area. */
function cellsAround(view: View, { geometry }: AreaStatistics): string[] {
  const corners = geometry.coordinates.flat(2);
  return [...new Set(corners.map(([lng, lat]) => view.at(lng!, lat!)?.cell))].filter((cell) => cell !== undefined);
}

/** Of an area without cells: nothing was released there, or it lies within cells that have their centres elsewhere. */
function nothing(view: View, around: string[], reading: string, choose: (cell: string) => void): HTMLElement[] {
  const said = make('p', { class: 'reading' }, reading);
  if (!around.length) return [said];
  const links = around.slice(0, MOST_CELLS).map((cell) => {
    const button = make('button', { type: 'button' }, ...cellName(view, cell));
    button.addEventListener('click', () => choose(cell));
    return make('li', {}, button);
  });
  return [said, make('p', { class: 'quiet' }, say('area.smaller-text')), make('ul', { class: 'cells' }, ...links)];
}
