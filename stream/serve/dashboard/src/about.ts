/** "About the noise": what the numbers of this window promise, in words. */

import { byId, chip, make } from './dom';
import { fillPage, plain, say, sayIfKnown } from './texts';
import { hours, length, span, when, zoneName } from './times';
import { SHORTCUTS } from './shortcuts';
import { inUnit, unit } from './units';
import type { Marker } from './types';
import type { View } from './view';

export function setUpAbout(view: View): void {
  const dialog = byId<HTMLDialogElement>('about');
  byId('about-keys').append(...SHORTCUTS.flatMap(([keys, meaning]) => [make('dt', {}, sayIfKnown(keys) ?? keys), make('dd', {}, say(meaning))]));
  byId('about-button').addEventListener('click', () => {
    fillPage(dialog); // another value may be on display
    byId('about-window').replaceChildren(...promises(view, view.window?.marker));
    for (const part of dialog.querySelectorAll<HTMLElement>('[data-relation]')) part.hidden = part.dataset.relation !== view.window?.marker?.relation;
    dialog.showModal();
  });
  byId('about-close').addEventListener('click', () => dialog.close());
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
}

type Fact = [term: string, ...said: (string | HTMLElement)[]];

/** What pure epsilon promises. */
const pure = ({ epsilon, budget, period }: Marker): Fact[] => [
  [say('about.epsilon'), say('about.epsilon-text', { epsilon: plain(epsilon) })],
  [say('about.budget'), `${say('about.budget-text', { budget: plain(budget), period: span(length(period)) })}`, make('sup', {}, plain(budget))],
];

/** What rho-zCDP promises, and the (ε, δ) it converts to. */
function concentrated({ epsilon, budget, rho = 0, rho_budget = 0, delta = 0, period }: Marker): Fact[] {
  const common = { delta: plain(delta), epsilon: plain(epsilon), budget: plain(budget), period: span(length(period)) };
  return [
    [say('about.accounting'), say('about.accounting-text')],
    [say('about.rho'), say('about.rho-text', { ...common, rho: plain(rho) })],
    [say('about.rho-budget'), say('about.rho-budget-text', { ...common, rho: plain(rho_budget) }), make('sup', {}, plain(budget))],
  ];
}

/** The spatial histograms of the window, their ε, and what a user spends on everything together. */
function histograms(view: View, marker: Marker): Fact[] {
  if (!view.histograms.length) return [];
  const names = view.histograms.join(', ');
  const counted = marker.histogram_epsilon;
  if (counted === undefined) return [[say('about.histograms'), chip('histogram'), ` ${say('about.histograms-unstated', { names })}`]];
  const { epsilon, rho } = marker;
  const spent =
    marker.accounting === 'zcdp'
      ? say('about.total-rho', { rho: plain(rho ?? 0) })
      : say('about.total-text', { epsilon: plain(epsilon), histograms: plain(counted), total: plain(epsilon + counted) });
  return [
    [say('about.histograms'), chip('histogram'), ` ${say('about.histograms-text', { names, epsilon: plain(counted) })}`],
    [say('about.total'), spent],
  ];
}

const bound = (kmh: number) => plain(Number(inUnit(kmh).toFixed(1)));

function facts(view: View, marker: Marker): Fact[] {
  const { period, clipping, relation, statistics } = marker;
  const cells = [...view.cells.values()];
  const bounds = view.window!.window;
  const published = cells.filter((cell) => cell.status === 'published').length;
  return [
    [say('about.window'), `${when(bounds, view.zone)} (${zoneName(period.timezone)})`],
    [say('about.who'), say('about.who-text', { period: span(length(period)) })],
    [say('about.relation'), relation],
    ...(marker.accounting === 'zcdp' ? concentrated(marker) : pure(marker)),
    ...histograms(view, marker),
    [say('about.clipping'), say('about.clipping-text', { lower: bound(clipping.lower), upper: bound(clipping.upper), unit: unit() })],
    ...(view.own.derived_speeds ? [[say('about.speeds'), say(`about.speeds.${view.own.derived_speeds}`)] as Fact] : []),
    [say('about.statistics'), statistics.join(', ')],
    [say('about.cells'), say('about.cells-text', { count: cells.length, hours: hours(bounds, view.zone), published })],
  ];
}

/** What is said of the window on display. */
function promises(view: View, marker: Marker | null | undefined): HTMLElement[] {
  if (!marker) return [make('p', {}, say('about.none'))];
  return [
    ...(view.opens === 'typical' ? [make('p', { class: 'lead' }, say('about.map.typical'))] : []),
    make('p', { class: 'lead' }, say(`about.relation.${marker.relation}`)),
    ...(view.own.derived_speeds && marker.relation === 'values' ? [make('p', { class: 'lead' }, say('derived.values'))] : []),
    make('dl', { class: 'facts' }, ...facts(view, marker).flatMap(([term, ...said]) => [make('dt', {}, term), make('dd', {}, ...said)])),
  ];
}
