/** "About the noise": what the numbers of this window promise, in words. */

import { byId, chip, make } from './dom';
import { say, sayIfKnown } from './texts';
import { hours, length, span, when, zoneName } from './times';
import { SHORTCUTS } from './shortcuts';
import { inUnit, unit } from './units';
import type { Marker } from './types';
import type { View } from './view';

export function setUpAbout(view: View): void {
  const dialog = byId<HTMLDialogElement>('about');
  byId('about-button').addEventListener('click', () => {
    byId('about-body').replaceChildren(...body(view));
    dialog.showModal();
  });
  byId('about-close').addEventListener('click', () => dialog.close());
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
}

const EVERYWHERE = ['curator', 'correlated', 'periods', 'late', 'modelled'] as const;
/** Limits for readers (`docs/known-limits.md` lists all, also for operators), those of one relation first, by the name of their texts. */
const LIMITS = { values: ['values', ...EVERYWHERE], participation: ['means', ...EVERYWHERE] } as const;

type Fact = [term: string, ...said: (string | HTMLElement)[]];

/** A number without the digits that floating point adds. */
const plain = (number: number) => String(Number(number.toPrecision(12))).replace('.', say('decimal'));

/** What pure epsilon promises. */
const pure = ({ epsilon, budget, period }: Marker): Fact[] => [
  [say('about.epsilon'), say('about.epsilon-text', { epsilon: plain(epsilon) })],
  [say('about.budget'), `${say('about.budget-text', { budget: plain(budget), period: span(length(period)) })}`, make('sup', {}, plain(budget))],
];

/** What rho-zCDP promises, and the (ε, δ) it converts to. */
function concentrated({ epsilon, budget, rho = 0, rho_budget = 0, delta = 0, period }: Marker): Fact[] {
  const common = { delta: String(delta).replace('.', say('decimal')), epsilon: plain(epsilon), budget: plain(budget), period: span(length(period)) };
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
    ...(view.derivedSpeeds ? [[say('about.speeds'), say(`about.speeds.${view.derivedSpeeds}`)] as Fact] : []),
    [say('about.statistics'), statistics.join(', ')],
    [say('about.cells'), say('about.cells-text', { count: cells.length, hours: hours(bounds, view.zone), published })],
  ];
}

function body(view: View): HTMLElement[] {
  const marker = view.window?.marker;
  const relation = marker?.relation ?? 'values';
  const how = [
    make('h3', {}, say('about.how')),
    ...(marker ? [make('p', {}, say(`about.noise.${relation}`))] : []),
    make('p', {}, say('about.interval')),
    make('p', {}, chip('modelled'), ` ${say('about.modelled')}`),
    make('p', {}, chip('raw'), ` ${say('about.raw')}`),
    make('p', {}, chip('histogram'), ` ${say('about.counted')}`),
    make('p', {}, say('about.typical')),
    make('p', {}, say('about.day')),
  ];
  if (!marker || !view.window) return [make('p', {}, say('about.none')), ...how];
  return [
    ...(view.opens === 'typical' ? [make('p', { class: 'lead' }, say('about.map.typical'))] : []),
    make('p', { class: 'lead' }, say(`about.relation.${relation}`)),
    ...(view.derivedSpeeds && relation === 'values' ? [make('p', { class: 'lead' }, say('derived.values'))] : []),
    make('dl', { class: 'facts' }, ...facts(view, marker).flatMap(([term, ...said]) => [make('dt', {}, term), make('dd', {}, ...said)])),
    ...how,
    make('h3', {}, say('about.limits')),
    make('ul', {}, ...LIMITS[relation].map((name) => make('li', {}, make('strong', {}, say(`limit.${name}.title`)), ` ${say(`limit.${name}.text`)}`))),
    make('h3', {}, say('about.keys')),
    make('dl', { class: 'keys' }, ...SHORTCUTS.flatMap(([keys, meaning]) => [make('dt', {}, sayIfKnown(keys) ?? keys), make('dd', {}, say(meaning))])),
    make('p', { class: 'quiet' }, `${say('about.land')} `, make('a', { href: 'licences.md' }, say('about.licences'))),
  ];
}
