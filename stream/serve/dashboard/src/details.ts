/** The card of the selected cell. */

import { ApiError, history } from './api';
import { make } from './dom';
import { sparkline } from './sparkline';
import { STATISTICS, comparison, countText, interval, sentence, shown, speed, type Statistic } from './statistics';
import { when } from './times';
import type { View } from './view';

/** The main line of a reading, with a mark where it is a model's. */
export function statement(view: View, cell: string): HTMLElement[] {
  const hexagon = view.cells.get(cell);
  if (!hexagon) return [make('p', { class: 'reading' }, 'Nothing was released about this cell in this window.')];
  const { now, usual } = view.read(hexagon);
  if (!now) return [make('p', { class: 'reading' }, 'Not published in this window.')];
  const name = STATISTICS[view.statistic].title.split(':')[0]!;
  return [
    make('p', { class: 'reading' }, sentence(now), now.method && make('span', { class: 'chip' }, 'modelled')),
    make('p', { class: 'quiet' }, name, usual ? `, ${comparison(now, usual)}` : ''),
  ];
}

export function cellCard(view: View, cell: string): HTMLElement[] {
  const hexagon = view.cells.get(cell);
  const past = make('div', {}, make('p', { class: 'quiet' }, 'Loading the past…'));
  void fillPast(view, cell, past);
  const parts: HTMLElement[] = [
    make('h2', {}, 'Cell ', make('code', {}, cell)),
    make('p', { class: 'quiet' }, view.window ? when(view.window.window, view.zone) : ''),
    ...statement(view, cell),
  ];
  if (hexagon) {
    parts.push(
      make('dl', {}, ...pair('Events', countText(hexagon.events)), ...pair('Users', countText(hexagon.users)),
        ...pair('ε in this window', String(hexagon.epsilon)), ...pair('H3 resolution', String(hexagon.resolution))),
      allStatistics(view, cell),
    );
  }
  parts.push(make('h3', {}, 'Past'), past);
  return parts;
}

const pair = (term: string, text: string) => [make('dt', {}, term), make('dd', {}, text)];

function allStatistics(view: View, cell: string): HTMLElement {
  const hexagon = view.cells.get(cell)!;
  const rows = view.statistics().flatMap((statistic: Statistic) => {
    const released = shown(hexagon, statistic, 'raw');
    if (!released) return [];
    const modelled = shown(hexagon, statistic, 'modelled');
    const estimate = hexagon[STATISTICS[statistic].from]!;
    const clamped = estimate.clamped && statistic !== 'spread' ? `clamped from ${estimate.raw.toFixed(0)}` : '';
    const lines = [line(STATISTICS[statistic].label, speed(released.value, released), interval(released), clamped)];
    if (modelled?.method) lines.push(line(make('span', { class: 'chip' }, 'modelled'), speed(modelled.value, modelled), interval(modelled), modelled.method));
    return lines;
  });
  if (!rows.length) return make('span');
  const head = ['Released', 'km/h', '95 % interval', 'Note'].map((label) => make('th', { scope: 'col' }, label));
  return make('table', { class: 'small' }, make('thead', {}, make('tr', {}, ...head)), make('tbody', {}, ...rows));
}

const line = (label: string | HTMLElement, value: string, range: string, note: string) =>
  make('tr', {}, make('th', { scope: 'row' }, label), make('td', { class: 'number' }, value), make('td', { class: 'number' }, range),
    make('td', { class: 'quiet' }, note));

async function fillPast(view: View, cell: string, target: HTMLElement): Promise<void> {
  try {
    const releases = await history(view.feed, cell);
    const current = view.window?.window.start ?? '';
    target.replaceChildren(sparkline(releases, view.statistic, view.kind, view.zone, current, view.upper));
  } catch (error) {
    const reason = error instanceof ApiError ? error.message : 'the server does not answer';
    target.replaceChildren(make('p', { class: 'quiet' }, `The past could not be read: ${reason}.`));
  }
}
