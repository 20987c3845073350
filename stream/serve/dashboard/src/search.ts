/** The search: places, stops, routes, areas and H3 indexes. Loaded when it is opened. */

import { isValidCell, latLngToCell } from 'h3-js';
import * as api from './api';
import { byId, make } from './dom';
import type { Page } from './page';
import { areaText, areaTitle } from './named';
import { say } from './texts';
import type { Spot } from './types';
import type { View } from './view';

interface Entry {
  kind: 'area' | 'route' | 'place' | 'stop' | 'cell';
  text: string;
  folded: string;
  /** The cell of a place, stop or index; the name of an area or route. */
  target: string;
  /** Longitude and latitude of a stop, or of the one that a place is called by. */
  at?: [number, number];
}

const MOST = 30;

/** Without accents and capitals, as it is compared. */
const fold = (text: string) => text.normalize('NFD').replaceAll(/\p{M}/gu, '').toLowerCase();
const entry = (kind: Entry['kind'], text: string, target: string, at?: [number, number]): Entry => ({ kind, text, target, folded: fold(text), at });

/** Entries that hold every word: those that begin with the query first, shorter ones before longer ones. */
export function search(entries: Entry[], query: string): Entry[] {
  const whole = fold(query.trim());
  const words = whole.split(/\s+/);
  const rank = ({ folded }: Entry) => (folded === whole ? 0 : folded.startsWith(whole) ? 1 : 2);
  return entries
    .filter(({ folded }) => words.every((word) => folded.includes(word)))
    .sort((a, b) => rank(a) - rank(b) || a.text.length - b.text.length);
}

/** What can be found. Fails if the server does not tell all of it, so that nothing is said to be missing that is not. */
async function collect(view: View): Promise<Entry[]> {
  const [areas, stops, listed] = await Promise.all([api.areas(), api.stops(), view.names?.list ?? api.places()]);
  const { cells, resolution } = listed;
  const places = cells.filter((place) => place.name);
  const spots = new Map<string, Spot>();
  for (const { geometry, properties } of resolution === null ? [] : stops) {
    const [lng, lat] = geometry.coordinates as [number, number];
    const cell = latLngToCell(lat, lng, resolution!);
    const key = properties.name + cell;
    if (!spots.has(key)) spots.set(key, { name: properties.name, at: [lng, lat], cell });
  }
  const known = new Set(places.map((place) => place.name + place.cell));
  return [
    ...areas.map(({ name, kind }) => entry(kind === 'route' ? 'route' : 'area', areaText(name), name)),
    ...places.map((place) => entry('place', place.name!, place.cell, spots.get(place.name + place.cell)?.at)),
    ...[...spots].filter(([key]) => !known.has(key)).map(([, { name, cell, at }]) => entry('stop', name, cell, at)),
  ];
}

/** `isEntered`: whether Enter was pressed last, before there was anything to choose from. */
export async function setUpSearch(view: View, page: Page, isEntered: () => boolean): Promise<void> {
  const menu = byId<HTMLDetailsElement>('search');
  const [input, list, status] = [byId<HTMLInputElement>('search-input'), byId('search-results'), byId('search-status')];
  const entries = await collect(view);
  let shown: Entry[] = [];
  let active = -1;

  const go = ({ kind, text, target, at }: Entry) => {
    menu.open = false;
    if (kind === 'area' || kind === 'route') page.area(target);
    else if (at) page.spot({ name: text, at, cell: target });
    else page.open(target);
  };

  const mark = (index: number) => {
    active = index;
    [...list.children].forEach((option, at) => option.setAttribute('aria-selected', String(at === index)));
    if (index < 0) input.removeAttribute('aria-activedescendant');
    else input.setAttribute('aria-activedescendant', `found-${index}`);
    list.children[index]?.scrollIntoView({ block: 'nearest' });
  };

  /** Areas and routes while nothing is typed: the list is also their picker. */
  const update = () => {
    const query = input.value.trim();
    const index = query.toLowerCase();
    const cells = isValidCell(index) && index.length === 15 ? [entry('cell', index, index)] : [];
    const all = query ? [...cells, ...search(entries, query)] : entries.filter(({ kind }) => kind === 'area' || kind === 'route');
    shown = all.slice(0, MOST);
    list.replaceChildren(...shown.map(option));
    list.hidden = !shown.length;
    input.setAttribute('aria-expanded', String(shown.length > 0));
    status.textContent = all.length ? say('search.count', { count: all.length, shown: shown.length }) : say('search.none');
    mark(-1);
  };

  const option = ({ kind, text, target }: Entry, at: number) => {
    const secondary = kind === 'place' || kind === 'stop' ? `${say(`search.${kind}`)} · ${target}` : say(`search.${kind}`);
    const title = kind === 'area' || kind === 'route' ? areaTitle(target) : [make('bdi', {}, text)];
    return make('li', { role: 'option', id: `found-${at}`, 'aria-selected': 'false', click: () => go(shown[at]!) },
      make('span', { class: 'name' }, ...title), make('span', { class: 'quiet' }, secondary));
  };

  input.addEventListener('input', update);
  input.addEventListener('keydown', (event) => {
    const last = shown.length - 1;
    const to = { ArrowDown: Math.min(active + 1, last), ArrowUp: Math.max(active - 1, -1) }[event.key];
    const chosen = shown[Math.max(active, 0)];
    if (to !== undefined) mark(to);
    else if (event.key === 'Enter' && chosen && !event.isComposing) go(chosen);
    else return;
    event.preventDefault();
  });
  update();
  if (isEntered() && shown[0]) go(shown[0]);
}
