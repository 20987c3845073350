/** The card of a named area: the released statistics of its cells together, as the server computes them. */

import { ApiError, area } from './api';
import { chip, make } from './dom';
import { LAPLACE, sentence } from './statistics';
import { decimals, say } from './texts';
import { when } from './times';
import type { AreaStatistics } from './types';
import type { View } from './view';

const ROUTE = 'route:';

/** "Route 10" of "route:10"; any other name as it is. */
export const areaTitle = (name: string) => (name.startsWith(ROUTE) ? say('area.route', { name: name.slice(ROUTE.length) }) : name);

/** The card; `then` gets the answer, for the outline on the map. */
export function namedCard(view: View, name: string, then: (found: AreaStatistics) => void): HTMLElement[] {
  const start = view.window?.window.start ?? '';
  const body = make('div', { 'data-area': name, 'data-window': start });
  // The answer stays while it is asked for again; that of another window would stand under the wrong time.
  const before = [...document.querySelectorAll<HTMLElement>('#details-body [data-area]')].find(
    ({ dataset }) => dataset.area === name && dataset.window === start,
  );
  body.append(...(before?.childNodes.length ? before.childNodes : [make('p', { class: 'quiet' }, say('cell.loading'))]));
  void fill(view, name, body, then);
  return [
    make('h2', {}, make('bdi', {}, areaTitle(name))),
    make('p', { class: 'quiet' }, view.window ? when(view.window.window, view.zone) : ''),
    body,
  ];
}

async function fill(view: View, name: string, target: HTMLElement, then: (found: AreaStatistics) => void): Promise<void> {
  try {
    const found = await area(view.feed, name, view.window?.window.start);
    if (view.named !== name) return;
    target.replaceChildren(...answers(found));
    then(found);
  } catch (error) {
    const reason = error instanceof ApiError ? error.message : say('failed.server');
    target.replaceChildren(make('p', { class: 'problem' }, say('area.failed', { reason })));
  }
}

function answers({ kind, cells, published, events, users, mean }: AreaStatistics): HTMLElement[] {
  const { value, interval } = (events ?? users)!;
  const range = interval
    ? say('area.noisy', { low: decimals(interval[0], 0), high: decimals(interval[1], 0) })
    : say('area.exact');
  const [low, high] = mean?.interval ?? [0, 0];
  const shown = mean && { value: mean.value, low, high, deviation: (high - low) / (2 * LAPLACE), quantile: LAPLACE, outside: low === high && mean.value !== mean.raw };
  return [
    shown ? make('p', { class: 'reading', id: 'area-mean' }, sentence(shown), chip('raw')) : make('p', { class: 'reading' }, say(published ? 'area.open' : 'area.none')),
    make('p', { class: 'quiet' }, say(kind === 'route' ? 'area.route-mean' : 'area.mean', { published, cells })),
    make('p', {}, say(events ? 'area.events' : 'area.cell-users', { value: decimals(value, 0), range })),
  ];
}
