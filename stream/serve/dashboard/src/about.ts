/** "About the noise": what the numbers of this window promise, in words. */

import { byId, make } from './dom';
import { hours, length, span, when } from './times';
import type { View } from './view';

const RELATIONS = {
  values:
    'What a user measured is hidden: two histories that differ in all measured speeds of one user give nearly the same numbers. Who reported, where, when and how often is public.',
  participation:
    'That a user took part at all is hidden: two histories that differ by everything one user did give nearly the same numbers. Counts carry noise too.',
};

const LIMITS = [
  'Whoever runs Hexveil sees the raw events; protection begins with what is published.',
  'One driver who changes vehicles is two users.',
  'Late windows of a period describe only users who still have budget left.',
  'The period boundary allows the budget once on each side of it: k periods cost k times the budget.',
  'Modelled values rest on a model; their intervals covered about 90 % in tests. The interval of a value as released covers 95 %.',
];

const LIMITS_OF = {
  values: 'Whereabouts are not hidden. Where positions and times are public anyway, distance over time already tells speeds roughly.',
  participation: 'Means and variances are ratios of noisy numbers; their intervals are wider than they need to be.',
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

function body(view: View): HTMLElement[] {
  const marker = view.window?.marker;
  const how = [
    make('h3', {}, 'How to read the map'),
    make('p', {}, 'Random noise was added to every number before it was published, so that no number tells much about any one user. The 95 % interval says how far the noise may have moved it. A cell is paler when its interval spans more than one class of the legend, and hatched when it was not published. Zooming in or waiting does not remove the noise: it was drawn once.'),
    make('p', {}, make('span', { class: 'chip' }, 'modelled'), ' values were computed from published noisy numbers alone, at no further cost to anyone’s privacy. “As released” shows what the mechanism published, clamped to the possible range.'),
    make('p', {}, '“Usual” is the mean of the cell’s own earlier published values, the more certain ones weighing more; nothing unpublished enters it.'),
  ];
  if (!marker || !view.window) return [make('p', {}, 'No window was released yet; the figures appear here with the first.'), ...how];
  const { epsilon, budget, period, clipping, relation, statistics } = marker;
  const facts: [string, string][] = [
    ['Window', `${when(view.window.window, view.zone)} (${period.timezone})`],
    ['Protected unit', `one user (vehicle or device) for one period of ${span(length(period))}`],
    ['Relation', relation],
    ['ε per window', `${epsilon} for one user, over all cells and statistics together`],
    ['ε per period', `${budget} for one user: nothing published in ${span(length(period))} changes the odds of any guess about one user by more than a factor e^${budget}`],
    ['Clipping', `speeds below ${clipping.lower} or above ${clipping.upper} ${clipping.unit} count as those bounds`],
    ['Statistics', statistics.join(', ')],
    ['Cells', `${view.cells.size} in ${hours(view.window.window, view.zone)}, ${[...view.cells.values()].filter((cell) => cell.status === 'published').length} published`],
  ];
  return [
    make('p', { class: 'lead' }, RELATIONS[relation]),
    make('dl', { class: 'facts' }, ...facts.flatMap(([term, text]) => [make('dt', {}, term), make('dd', {}, text)])),
    ...how,
    make('h3', {}, 'Known limits'),
    make('ul', {}, ...[LIMITS_OF[relation], ...LIMITS].map((text) => make('li', {}, text))),
    make('p', { class: 'quiet' }, 'Land outline: Natural Earth, public domain. ', licences()),
  ];
}

const licences = () => make('a', { href: 'licences.md' }, 'Licences of the software in this page');
