/** What the card of an area says, and its forms: bounds of a box, or corners and name of a polygon. */

import { MOST_CORNERS, LONGEST_NAME, areaFile, boxArea, cornerLines, cornersSoFar, counted, parseCorners, type Area, type Drawn, type Refusal } from './area';
import { count, reasonOf } from './api';
import { chip, made, make } from './dom';
import type { Form } from './drawing';
import { areaTitle } from './named';
import { say } from './texts';
import type { Box } from './types';
import type { View } from './view';

/** The heading, and what kind of area it is; of none, how to draw one. */
export function heading(view: View, area: Area | null, form: Form): HTMLElement[] {
  const time = make('p', { class: 'quiet' }, view.said);
  if (area?.kind === 'named') return [make('h2', {}, ...areaTitle(area.name)), time];
  if (area?.kind === 'box') return [make('h2', {}, say('area.title')), time];
  if (area?.kind === 'drawn') {
    const name = area.drawn.name ? make('bdi', {}, area.drawn.name) : say('area.drawn');
    return [make('h2', {}, name), time, make('p', { class: 'quiet' }, say('area.in-address'), ' ', saved(area.drawn))];
  }
  const title = make('h2', {}, say('area.title'));
  if (area) return [title, make('p', { class: 'problem', role: 'alert' }, refused(area.refusal))];
  return [title, make('p', { class: 'quiet' }, say(form === 'box' ? 'area.how' : 'area.how-polygon'))];
}

const refused = ({ reason, count, line }: Refusal) => say(`area.refused.${reason}`, { count, line, most: reason === 'name' ? LONGEST_NAME : MOST_CORNERS });

function saved(drawn: Drawn): HTMLElement {
  const file = `data:application/geo+json,${encodeURIComponent(areaFile(drawn, say('area.drawn')))}`;
  return make('a', { href: file, download: 'area.geojson' }, say('area.save'));
}

/** Box or polygon, while nothing is drawn yet. */
export function forms(chosen: Form, choose: (form: Form) => void): HTMLElement {
  const choices = made<HTMLFieldSetElement>('area-forms-choice');
  for (const input of choices.querySelectorAll('input')) input.checked = input.value === chosen;
  choices.addEventListener('change', ({ target }) => choose((target as HTMLInputElement).value as Form));
  return choices;
}

/** A form that opens the area which `read` finds in it, or says why there is none. */
function formOf(template: string, read: () => Area, open: (area: Area) => void): HTMLFormElement {
  const form = made<HTMLFormElement>(template);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const area = read();
    form.querySelector('.problem')!.textContent = area.kind === 'refused' ? refused(area.refusal) : '';
    if (area.kind !== 'refused') open(area);
  });
  return form;
}

export function boundsForm(box: Box, open: (area: Area) => void): HTMLFormElement {
  const form = formOf('bounds-form', () => boxArea(inputs.map((input) => input.valueAsNumber), 'bounds'), open);
  const inputs = [...form.querySelectorAll('input')];
  inputs.forEach((input, side) => (input.value = box[side]!.toFixed(5)));
  return form;
}

/** `typed` is called with the corners in the field whenever they change, however few. */
export function cornersForm({ ring, name }: Drawn, open: (area: Area) => void, typed: (corners: Drawn['ring']) => void): HTMLFormElement {
  const form = formOf('corners-form', () => parseCorners(corners.value, title.value), open);
  const [corners, title] = [form.querySelector('textarea')!, form.querySelector('input')!];
  [corners.value, title.value] = [cornerLines(ring), name];
  corners.addEventListener('input', () => typed(cornersSoFar(corners.value)));
  return form;
}

/** What every spatial histogram of the window says of a box. */
export function counts(view: View, box: Box): HTMLElement {
  const target = make('div', { id: 'histogram-count' }, say(view.histograms.length ? 'area.asking' : 'area.no-histogram'));
  const said = view.histograms.map((mechanism) =>
    count(view.feed, view.window!.window.start, mechanism, box).then(counted, (error: unknown) => say('area.histogram-failed', { mechanism, reason: reasonOf(error) })));
  void Promise.all(said).then((texts) => texts.length && target.replaceChildren(...texts.map((text) => make('p', {}, chip('histogram'), ` ${text}`))));
  return target;
}
