/** The menu of downloads: the window on display, and all windows of a range. */

import { areasAddress, downloadAddress, rangeAddress } from './api';
import { byId, closing, make } from './dom';
import { say } from './texts';
import { clock, day } from './times';
import type { View } from './view';

const FORMATS = [
  ['csv', 'CSV'],
  ['parquet', 'Parquet'],
  ['geojson', 'GeoJSON'],
] as const;

/** Parquet is offered only where the server can write it. */
const formats = (view: View) => FORMATS.filter(([format]) => format !== 'parquet' || view.settings?.parquet);

const list = (files: (readonly [label: string, address: string])[]) =>
  make('ul', {}, ...files.map(([label, href]) => make('li', {}, make('a', { href, download: true }, label))));

const links = (view: View, address: (format: string) => string) => list(formats(view).map(([format, label]) => [label, address(format)]));

/** The range that is being chosen while the menu is open. */
let chosen: Range | null = null;

export function setUpDownloads(view: View): void {
  const menu = byId<HTMLDetailsElement>('downloads');
  menu.addEventListener('toggle', () => {
    chosen = null;
    if (menu.open) fill(view);
  });
  closing(menu);
}

/** Shown while there is a window to download; filled when it is opened. */
export function showDownloads(view: View): void {
  const menu = byId<HTMLDetailsElement>('downloads');
  menu.hidden = !view.window || view.over !== null;
  if (!menu.open || menu.dataset.window === shownIn(view)) return;
  const items = () => [...byId('download-list').querySelectorAll<HTMLElement>('a, select')];
  const focused = items().findIndex((item) => item === document.activeElement);
  fill(view);
  if (focused >= 0) (items()[focused] ?? menu.querySelector('summary')!).focus();
}

/** The windows that the menu offers one by one. */
const shownIn = (view: View) => [view.window?.window.start, view.scheme === 'day' && view.otherDay!.other?.window.start].join();

function fill(view: View): void {
  const start = view.window?.window.start;
  if (!start) return;
  const other = view.scheme === 'day' ? view.otherDay!.other : null;
  byId('downloads').dataset.window = shownIn(view);
  const files = make('div');
  const update = ({ from, to }: Range) => files.replaceChildren(links(view, (format) => rangeAddress(view.feed, from, to, format)));
  const ends = chosen ?? { from: view.range.from ?? start, to: view.range.to ?? view.window!.window.end };
  const fields = rangeFields(view, ends, (range) => {
    chosen = range;
    update(range);
  });
  update(ends);
  byId('download-list').replaceChildren(
    make('h2', {}, say('download.this')),
    links(view, (format) => downloadAddress(view.feed, start, format)),
    ...(view.settings?.areas ? [make('h2', {}, say('download.areas')), list([['CSV', areasAddress(view.feed, start)]])] : []),
    ...(other ? [make('h2', {}, say('download.other')), links(view, (format) => downloadAddress(view.feed, other.window.start, format))] : []),
    make('h2', {}, say('download.range')),
    fields,
    files,
  );
}

/** Start of the first window and end of the last one. */
interface Range {
  from: string;
  to: string;
}

/** Two fields that choose a range among the windows there are; `then` gets every choice. */
export function rangeFields(view: View, { from, to }: Range, then: (range: Range) => void): HTMLElement {
  const fields = make('div', { class: 'range' }, choice(view, 'from', view.windows.map(({ window }) => window.start), from),
    choice(view, 'to', view.windows.map(({ window }) => window.end), to));
  const [first, last] = [...fields.querySelectorAll('select')] as [HTMLSelectElement, HTMLSelectElement];
  fields.addEventListener('change', () => then({ from: first.value, to: last.value }));
  return fields;
}

function choice(view: View, end: 'from' | 'to', times: string[], chosen: string): HTMLElement {
  const said = (time: string) => `${day(time, view.zone)}, ${clock(time, view.zone)}`;
  const all = times.includes(chosen) ? times : [...times, chosen].sort();
  const options = all.map((time) => make('option', { value: time, selected: time === chosen }, said(time)));
  return make('label', {}, say(`download.${end}`), make('select', { name: end }, ...options));
}
