/** What the card of an area says, and its forms: bounds of a box, or corners and name of a polygon. */

import { MOST_CORNERS, LONGEST_NAME, areaFile, boxFrom, cornerLines, cornersSoFar, counted, parseCorners, type Area, type Drawn, type Refusal } from './area';
import { ApiError, count } from './api';
import { chip, make } from './dom';
import type { Form } from './drawing';
import { areaTitle } from './named';
import { say, type TextKey } from './texts';
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
  const choices = (['box', 'polygon'] as const).map((form) => {
    const input = make('input', { type: 'radio', name: 'area-form', value: form, checked: form === chosen });
    input.addEventListener('change', () => choose(form));
    return make('label', {}, input, make('span', {}, say(`area.${form}`)));
  });
  return make('fieldset', { class: 'segments', id: 'area-forms' }, make('legend', {}, say('area.form')), ...choices);
}

const SIDES: TextKey[] = ['area.west', 'area.south', 'area.east', 'area.north'];

export function boundsForm(box: Box, open: (area: Area) => void): HTMLFormElement {
  const inputs = SIDES.map((side, index) =>
    make('input', { type: 'number', step: 'any', name: side.slice(5), required: true, value: box[index]!.toFixed(5) }),
  );
  const problem = make('p', { class: 'problem', role: 'alert' });
  const labels = SIDES.map((side, index) => make('label', {}, say(side), inputs[index]!));
  const form = make('form', { class: 'bounds' }, ...labels, make('button', { type: 'submit' }, say('area.measure')), problem);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const chosen = boxFrom(inputs.map((input) => input.valueAsNumber));
    problem.textContent = chosen ? '' : say('area.wrong');
    if (chosen) open({ kind: 'box', box: chosen });
  });
  return form;
}

/** `typed` is called with the corners in the field whenever they change, however few. */
export function cornersForm({ ring, name }: Drawn, open: (area: Area) => void, typed: (corners: Drawn['ring']) => void): HTMLFormElement {
  const corners = make('textarea', { name: 'corners', rows: 5, spellcheck: 'false', required: true, dir: 'ltr' });
  corners.value = cornerLines(ring);
  const title = make('input', { name: 'name', type: 'text', autocomplete: 'off', dir: 'auto', value: name });
  const problem = make('p', { class: 'problem', role: 'alert' });
  const form = make('form', { class: 'bounds polygon' }, make('label', {}, say('area.corners'), corners), make('label', {}, say('area.name'), title),
    make('button', { type: 'submit' }, say('area.measure')), problem);
  corners.addEventListener('input', () => typed(cornersSoFar(corners.value)));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const area = parseCorners(corners.value, title.value);
    problem.textContent = area.kind === 'refused' ? refused(area.refusal) : '';
    if (area.kind === 'drawn') open(area);
  });
  return form;
}

/** What every spatial histogram of the window says of a box. */
export function counts(view: View, box: Box): HTMLElement {
  const target = make('div', { id: 'histogram-count' }, say('area.asking'));
  void fillCounts(view, box, target);
  return target;
}

async function fillCounts(view: View, box: Box, target: HTMLElement): Promise<void> {
  const mechanisms = view.histograms;
  if (!mechanisms.length) {
    target.textContent = say('area.no-histogram');
    return;
  }
  const start = view.window!.window.start;
  const said = mechanisms.map((mechanism) =>
    count(view.feed, start, mechanism, box).then(counted, (error: unknown) =>
      say('area.histogram-failed', { mechanism, reason: error instanceof ApiError ? error.message : say('failed.server') })),
  );
  target.replaceChildren(...(await Promise.all(said)).map((text) => make('p', {}, chip('histogram'), ` ${text}`)));
}
