/** The card of choices: statistic, colours, kind of value, and the legend. */

import { byId, make } from './dom';
import {
  RELATIVE_LABELS,
  STATISTICS,
  absoluteLabels,
  opacity,
  topOf,
  type Kind,
  type Scheme,
  type Statistic,
} from './statistics';
import type { Look } from './map';
import type { View } from './view';

export interface Choices {
  statistic(statistic: Statistic): void;
  scheme(scheme: Scheme): void;
  kind(kind: Kind): void;
}

const radios = (id: string) => [...byId(id).querySelectorAll<HTMLInputElement>('input')];

export function setUpControls(choices: Choices): void {
  const list = byId('statistics');
  for (const [name, { label, title }] of Object.entries(STATISTICS)) {
    const input = make('input', { type: 'radio', name: 'statistic', value: name, 'aria-label': title });
    list.append(make('label', { title }, input, make('span', {}, label)));
  }
  const listen = <T extends string>(id: string, then: (value: T) => void) =>
    byId(id).addEventListener('change', (event) => then((event.target as HTMLInputElement).value as T));
  listen<Statistic>('statistics', choices.statistic);
  listen<Scheme>('schemes', choices.scheme);
  listen<Kind>('kinds', choices.kind);
  const small = matchMedia('(max-width: 719px)');
  const fold = byId<HTMLDetailsElement>('controls-fold');
  fold.open = !small.matches;
  small.addEventListener('change', () => (fold.open = !small.matches));
}

export function showControls(view: View, looks: Look[]): void {
  byId('controls').hidden = !view.window;
  if (!view.window) return;
  check('statistics', view.statistic, (name) => view.available(name as Statistic));
  check('schemes', view.scheme, (name) => name === 'absolute' || view.comparable);
  check('kinds', view.modelled && view.kind === 'modelled' ? 'modelled' : 'raw', (name) => name === 'raw' || view.modelled);
  const title = STATISTICS[view.statistic].title.split(':')[0]!;
  byId('controls-title').textContent = title;
  byId('legend').replaceChildren(...legend(view, looks));
}

function check(id: string, chosen: string, enabled: (name: string) => boolean): void {
  for (const input of radios(id)) {
    input.checked = input.value === chosen;
    input.disabled = !enabled(input.value);
  }
}

function legend(view: View, looks: Look[]): HTMLElement[] {
  const against = view.scheme === 'usual';
  const labels = against ? RELATIVE_LABELS : absoluteLabels(view.breaks, topOf(view.statistic, view.upper));
  const title = against ? 'Against the usual speed of each cell' : 'km/h';
  const rows = labels.map((label, index) => row(label, view.colours[index]!));
  const extra = [
    looks.some((look) => look.hatched) && row('not published', 'hatch'),
    looks.some((look) => !look.hatched && look.index < 0) && row('usual speed not known well', 'unknown'),
  ].filter((item) => item !== false);
  const fainter = [1, 2, 3, 4].map((spans) => swatch(view.colours.at(-1)!, opacity(spans)));
  return [
    make('h3', {}, title),
    make('ul', {}, ...rows, ...extra),
    make('p', { class: 'fainter' }, make('span', { class: 'ramp', 'aria-hidden': 'true' }, ...fainter), 'Fainter: the 95 % interval spans 2, 3 or more classes'),
    view.kind === 'modelled' && view.modelled
      ? make('p', { class: 'note' }, make('span', { class: 'chip' }, 'modelled'), ' Estimates of a model from noisy releases')
      : make('p', { class: 'note' }, 'Values as released, noise from privacy included'),
  ];
}

const row = (label: string, colour: string) => make('li', {}, swatch(colour, 1), label);

function swatch(colour: string, strength: number): HTMLElement {
  const special = colour === 'hatch' || colour === 'unknown';
  const outer = make('span', { class: special ? `swatch ${colour}` : 'swatch', 'aria-hidden': 'true' });
  if (special) return outer;
  const inner = make('span');
  inner.style.backgroundColor = colour;
  inner.style.opacity = String(strength);
  outer.append(inner);
  return outer;
}
