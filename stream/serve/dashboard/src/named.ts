/** The released statistics of an area's cells together, as the server computes them for named and drawn areas alike. */

import { area, means, reasonOf } from './api';
import { areaKey, ringOf, ringText, type Area } from './area';
import { cellName, chip, isolated, make } from './dom';
import { sentence, type Shown } from './statistics';
import { decimals, say } from './texts';
import type { AreaStatistics, Over } from './types';
import type { View } from './view';
import { ways } from './ways';

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
    const found = await (view.over ? overRange(view, open, view.over) : area(view.feed, which(open), start));
    if (isLate()) return;
    const around = found.cells ? [] : cellsAround(view, found);
    const reading = readingOf(found, around);
    target.replaceChildren(...(found.cells ? answers(found, reading) : nothing(view, around, reading, choose)), ...(found.kind === 'route' ? [ways(view, found.name!.slice(ROUTE.length))] : []));
    then(found, reading);
  } catch (error) {
    if (isLate()) return;
    const reading = say('area.failed', { reason: reasonOf(error) });
    target.replaceChildren(make('p', { class: 'problem' }, reading));
    then(null, reading);
  }
}

const which = (open: Area) => (open.kind === 'named' ? { area: open.name } : { ring: ringText(ringOf(open)!) });

/** The area with the numbers of a range in place of a window's. */
async function overRange(view: View, open: Area, over: Over): Promise<AreaStatistics> {
  const [shape, { cells, together }] = await Promise.all([area(view.feed, which(open)), means(view.feed, over, which(open))]);
  const { events, users, mean } = together;
  return { ...shape, cells: cells.length, published: cells.filter((one) => one.mean).length, events, users, estimate: mean && { ...mean, method: 'released' } };
}

function meanOf({ estimate }: AreaStatistics): Shown | null {
  if (!estimate) return null;
  const [low, high] = estimate.interval!;
  return { value: estimate.value, low, high, outside: low === high, atBound: estimate.at_bound, ...(estimate.method === 'released' ? {} : { method: estimate.method }) };
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

/** The cells on display at the corners of an area. */
function cellsAround(view: View, { geometry }: AreaStatistics): string[] {
  const corners = geometry.coordinates.flat(2);
  return [...new Set(corners.map(([lng, lat]) => view.at(lng!, lat!)?.cell))].filter((cell) => cell !== undefined);
}

/** Of an area without cells: nothing was released there, or it lies within cells that have their centres elsewhere. */
function nothing(view: View, around: string[], reading: string, choose: (cell: string) => void): HTMLElement[] {
  const said = make('p', { class: 'reading' }, reading);
  if (!around.length) return [said];
  const links = around.slice(0, MOST_CELLS).map((cell) =>
    make('li', {}, make('button', { type: 'button', click: () => choose(cell) }, ...cellName(view, cell))));
  return [said, make('p', { class: 'quiet' }, say('area.smaller-text')), make('ul', { class: 'cells' }, ...links)];
}
