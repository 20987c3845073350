/** The menu of downloads: the window on display, and all windows of a range. */

import { downloadAddress, rangeAddress } from './api';
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
const formats = (view: View) => FORMATS.filter(([format]) => format !== 'parquet' || view.parquet);

const links = (view: View, address: (format: string) => string) =>
  make('ul', {}, ...formats(view).map(([format, label]) => make('li', {}, make('a', { href: address(format), download: true }, label))));

export function setUpDownloads(view: View): void {
  const menu = byId<HTMLDetailsElement>('downloads');
  menu.addEventListener('toggle', () => menu.open && fill(view));
  closing(menu);
}

/** Shown while there is a window to download; filled when it is opened. */
export function showDownloads(view: View): void {
  const menu = byId<HTMLDetailsElement>('downloads');
  menu.hidden = !view.window;
  if (menu.open && menu.dataset.window !== view.window?.window.start) fill(view);
}

function fill(view: View): void {
  const start = view.window?.window.start;
  if (!start) return;
  byId('downloads').dataset.window = start;
  const range = make('div');
  const fields = make('div', { class: 'range' }, choice(view, 'from', view.windows.map((window) => window.window.start)),
    choice(view, 'to', view.windows.map((window) => window.window.end)));
  const [from, to] = [...fields.querySelectorAll('select')] as [HTMLSelectElement, HTMLSelectElement];
  [from.value, to.value] = [start, view.window!.window.end];
  const update = () => range.replaceChildren(links(view, (format) => rangeAddress(view.feed, from.value, to.value, format)));
  fields.addEventListener('change', update);
  update();
  byId('download-list').replaceChildren(
    make('h2', {}, say('download.this')),
    links(view, (format) => downloadAddress(view.feed, start, format)),
    make('h2', {}, say('download.range')),
    fields,
    range,
  );
}

function choice(view: View, end: 'from' | 'to', times: string[]): HTMLElement {
  const said = (time: string) => `${day(time, view.zone)}, ${clock(time, view.zone)}`;
  const options = times.map((time) => make('option', { value: time }, said(time)));
  return make('label', {}, say(`download.${end}`), make('select', { name: end }, ...options));
}
