/** "About the noise": what the numbers of this window promise, in words. */

import { byId, make } from './dom';
import { hours, length, span, when } from './times';
import { SHORTCUTS } from './shortcuts';
import type { Marker } from './types';
import type { View } from './view';

const RELATIONS = {
  values:
    'What a user measured is hidden: two histories that differ in all measured speeds of one user give nearly the same numbers. Who reported, where, when and how often is public.',
  participation:
    'That a user took part at all is hidden: two histories that differ by everything one user did give nearly the same numbers. Counts carry noise too.',
};

export function setUpAbout(view: View): void {
  const dialog = byId<HTMLDialogElement>('about');
  byId('about-button').addEventListener('click', () => {
    byId('about-body').replaceChildren(...body(view));
    dialog.showModal();
  });
  byId('about-close').addEventListener('click', () => dialog.close());
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
}

type Fact = [term: string, ...said: (string | HTMLElement)[]];

/** What pure epsilon promises. */
const pure = ({ epsilon, budget, period }: Marker): Fact[] => [
  ['ε per window', `${epsilon} for one user, over all cells and statistics together`],
  ['ε per period', `${budget} for one user: nothing published in ${span(length(period))} changes the odds of any guess about one user by more than a factor e`, make('sup', {}, String(budget))],
];

/** What rho-zCDP promises, and the (ε, δ) it converts to. */
const concentrated = ({ epsilon, budget, rho, rho_budget, delta, period }: Marker): Fact[] => [
  ['Accounting', 'zero-concentrated differential privacy (zCDP), discrete Gaussian noise'],
  ['ρ per window', `${rho} for one user, over all cells and statistics together; that is ε ${epsilon} at δ ${delta}`],
  ['ρ per period', `${rho_budget} for one user; that is ε ${budget} at δ ${delta}: but for a chance of ${delta}, nothing published in ${span(length(period))} changes the odds of any guess about one user by more than a factor e`, make('sup', {}, String(budget))],
];

function body(view: View): HTMLElement[] {
  const marker = view.window?.marker;
  const how = [
    make('h3', {}, 'How to read the map'),
    make('p', {}, 'Random noise was added to every number before it was published, so that no number tells much about any one user. The 95 % interval says how far the noise may have moved it. A cell is fainter when its interval spans more than one class of the legend, and hatched when it was not published. Zooming in or waiting does not remove the noise: it was drawn once.'),
    make('p', {}, make('span', { class: 'chip' }, 'modelled'), ' values were computed from published noisy numbers alone, at no further cost to anyone’s privacy. “As released” shows what the mechanism published, clamped to the possible range.'),
    make('p', {}, '“Usual” is the mean of the cell’s own earlier published values, the more certain ones weighing more; nothing unpublished enters it.'),
  ];
  if (!marker || !view.window) return [make('p', {}, 'No window was released yet; the figures appear here with the first.'), ...how];
  const { period, clipping, relation, statistics } = marker;
  const cells = [...view.cells.values()];
  const facts: Fact[] = [
    ['Window', `${when(view.window.window, view.zone)} (${period.timezone})`],
    ['Who is protected', `one user (vehicle or device) for one period of ${span(length(period))}`],
    ['Relation', relation],
    ...(marker.accounting === 'zcdp' ? concentrated(marker) : pure(marker)),
    ['Clipping', `speeds below ${clipping.lower} or above ${clipping.upper} ${clipping.unit} count as those bounds`],
    ['Statistics', statistics.join(', ')],
    ['Cells', `${cells.length} in ${hours(view.window.window, view.zone)}, ${cells.filter((cell) => cell.status === 'published').length} published`],
  ];
  const limits = view.limits.filter((limit) => limit.relation === null || limit.relation === relation);
  return [
    make('p', { class: 'lead' }, RELATIONS[relation]),
    make('dl', { class: 'facts' }, ...facts.flatMap(([term, ...said]) => [make('dt', {}, term), make('dd', {}, ...said)])),
    ...how,
    make('h3', {}, 'Known limits'),
    make('ul', {}, ...limits.map(({ title, text }) => make('li', {}, make('strong', {}, title), ` ${text}`))),
    make('h3', {}, 'Keys while the map has the focus'),
    make('dl', { class: 'keys' }, ...SHORTCUTS.flatMap(([keys, meaning]) => [make('dt', {}, keys), make('dd', {}, meaning)])),
    make('p', { class: 'quiet' }, 'Land outline: Natural Earth, public domain. ', licences()),
  ];
}

const licences = () => make('a', { href: 'licences.md' }, 'Licences of the software in this page');
