/** The card of choices: statistic, colours, kind of value, and the legend. */

import { byId, chip, closing, make, row, swatch, type Mark } from './dom';
import { heatLegend } from './heat';
import type { Page } from './page';
import { say } from './texts';
import {
  COMPARING,
  RELATIVE_BREAKS,
  absoluteLabels,
  isNobody,
  opacity,
  relativeLabels,
  topOf,
  type Kind,
  type Scheme,
  type Statistic,
} from './statistics';
import { day, localDate } from './times';
import { chosenUnit, otherValue, unit, type Unit } from './units';
import type { Look } from './hexagonlayer';
import type { Settings } from './types';
import type { View } from './view';

const radios = (id: string) => [...byId(id).querySelectorAll<HTMLInputElement>('input')];

export function setUpControls(view: View, page: Page): void {
  const listen = <T extends string>(id: string, then: (value: T) => void) =>
    byId(id).addEventListener('change', (event) => then((event.target as HTMLInputElement).value as T));
  listen<Statistic>('statistics', page.statistic);
  listen<Scheme>('schemes', (scheme) => page.scheme(scheme === 'difference' ? view.comparison : scheme));
  listen<Scheme>('against', page.scheme);
  listen<string>('day', (date) => {
    view.day = date || null;
    page.scheme('day');
  });
  listen<Kind>('kinds', (kind) => page.change(() => (view.kind = kind)));
  listen<Unit>('units', page.unit);
  const small = matchMedia('(max-width: 719px)');
  const fold = byId<HTMLDetailsElement>('controls-fold');
  fold.open = !small.matches;
  small.addEventListener('change', () => (fold.open = !small.matches));
}

export function showControls(view: View, looks: Look[]): void {
  byId('controls').hidden = !view.window;
  if (!view.window) return;
  check('statistics', view.statistic, (name) => view.available(name as Statistic));
  byId('statistics').hidden = view.statistics().length < 2;
  const comparing = COMPARING.filter((name) => view.offers(name));
  check('schemes', view.compares ? 'difference' : view.scheme, (name) => (name === 'difference' ? comparing.length > 0 : view.offers(name as Scheme)));
  showAgainst(view, comparing);
  showDays(view);
  check('kinds', view.shownKind, (name) => (name === 'raw' ? !view.modelledAlone : true));
  byId('kinds').hidden = !view.modelled || view.scheme === 'typical' || view.scheme === 'difference';
  check('units', chosenUnit(), () => true);
  byId('units').hidden = otherValue() !== null;
  for (const input of radios('statistics')) if (input.value === 'moving') input.closest('label')!.hidden = otherValue() !== null;
  byId('controls-title').textContent = view.heat ? say('heat.label') : say(`${view.statistic}.name`);
  byId('controls-against').textContent = view.heat ? say('heat.unit') : [comparedWith(view), ...noneClear(view, looks)].join('. ');
  byId('heat').hidden = !view.histograms.length;
  byId('legend').replaceChildren(...(view.heat ? heatLegend(view.heat) : legend(view, looks)));
}

/** What the colours compare with; of colours that compare with nothing, their unit. */
function comparedWith(view: View): string {
  switch (view.scheme) {
    case 'now': return unit();
    case 'scheduled': return say('legend.against.scheduled');
    case 'day': return view.otherDay!.other ? view.againstDay() : say('day.none');
    case 'typical': return say('legend.title.typical', { unit: unit() });
    case 'difference': return say('legend.against.typical');
  }
}

/** That everything is grey, because noise explains every difference; it is said also where the legend is folded. */
const noneClear = (view: View, looks: Look[]) =>
  view.compares && looks.length && !looks.some(({ index }) => index >= 0 && index <= RELATIVE_BREAKS.length) ? [say('legend.none-clear')] : [];

/** Offer what the colours of a difference may compare with. */
function showAgainst(view: View, comparing: Scheme[]): void {
  byId('against').hidden = !view.compares || comparing.length < 2;
  const picker = byId<HTMLSelectElement>('against-choice');
  for (const option of picker.options) option.hidden = option.disabled = !comparing.includes(option.value as Scheme);
  if (view.compares) picker.value = view.scheme;
}

/** Offer the local days of the feed's windows, and that of the address. */
function showDays(view: View): void {
  byId('day').hidden = view.scheme !== 'day';
  if (view.scheme !== 'day') return;
  const picker = byId<HTMLSelectElement>('day-choice');
  const own = localDate(view.window!.window.start, view.zone);
  const all = new Set([...view.windows.map(({ window }) => localDate(window.start, view.zone)), ...(view.day ? [view.day] : [])]);
  const dates = [...all].filter((date) => date !== own || date === view.day).sort().reverse();
  const key = [view.zone, ...dates].join();
  if (picker.dataset.days !== key) {
    picker.dataset.days = key;
    const named = dates.map((date) => make('option', { value: date }, day(`${date}T12:00:00Z`, 'UTC')));
    picker.replaceChildren(make('option', { value: '' }, say('day.default')), ...named);
  }
  picker.value = view.day ?? '';
}

function check(id: string, chosen: string, enabled: (name: string) => boolean): void {
  for (const input of radios(id)) {
    input.checked = input.value === chosen;
    input.disabled = !enabled(input.value);
  }
}

function legend(view: View, looks: Look[]): HTMLElement[] {
  const { scheme } = view;
  const against = view.compares;
  const title = make('h3', {}, comparedWith(view));
  if (scheme === 'day' && !view.otherDay!.other) return [title, make('p', { class: 'problem' }, view.againstDay())];
  const labels = view.compares ? relativeLabels(view.scheme as 'difference').map((key) => say(key)) : absoluteLabels(view.statistic, view.breaks, topOf(view.statistic, view.upper));
  const rows = labels.map((label, index) => row(label, view.colours[index]!));
  const extra = [
    looks.some((look) => look.hatched) && row(say('legend.not-published'), 'hatch'),
    looks.some((look) => isNobody(look.hexagon)) && row(say('legend.nobody'), 'nobody'),
    looks.some((look) => !look.hatched && look.index < 0 && look.opacity > 0) && row(say(scheme === 'scheduled' ? 'legend.unscheduled' : scheme === 'day' ? 'legend.no-value' : 'legend.unknown'), 'unknown'),
  ].filter((item) => item !== false);
  const fainter = [1, 2, 3, 4].map((spans) => swatch(view.colours[labels.length - (against ? 2 : 1)]!, opacity(spans)));
  return [
    title,
    ...noneClear(view, looks).map((text) => make('p', { class: 'note' }, `${text}.`)),
    ...(view.over ? [make('p', { class: 'note' }, view.said)] : []),
    make('ul', {}, ...rows, ...extra),
    make('p', { class: 'fainter' }, make('span', { class: 'ramp', 'aria-hidden': 'true' }, ...fainter), say(view.unbounded ? 'legend.unbounded' : 'legend.fainter')),
    scheme === 'typical' || scheme === 'difference' ? note('modelled', say(`legend.${scheme}`)) : against ? note('raw', say('legend.compared')) : note(view.mark, say(`legend.${view.mark}`)),
    ...(scheme === 'scheduled' ? [make('p', { class: 'note' }, say('legend.scheduled'))] : []),
    ...(scheme === 'now' && view.opens === 'typical' ? [make('p', { class: 'note' }, say('legend.not-live'))] : []),
    ...derived(view),
    ...(view.histograms.length ? [note('histogram', say('legend.histograms', { names: view.histograms.join(', ') }))] : []),
  ];
}

/** That speeds are derived, and under "values" that nothing but "participation" would protect these. */
function derived(view: View): HTMLElement[] {
  if (!view.own.derived_speeds) return [];
  const unprotected = view.window?.marker?.relation === 'values' ? ` ${say('derived.values')}` : '';
  return [make('p', { class: 'note derived' }, say(`about.speeds.${view.own.derived_speeds}`), unprotected)];
}

const note = (kind: Mark, text: string) => make('p', { class: 'note' }, chip(kind), ` ${text}`);

/** What the operator's files of the city add: the search with the list of areas, and the switches for lines and hexagons. */
export function setUpCity(view: View, settings: Settings, page: Page): void {
  const menu = byId<HTMLDetailsElement>('search');
  menu.hidden = !settings.places && !settings.areas;
  closing(menu);
  let ready: Promise<void> | null = null;
  let opener: EventTarget | null = null;
  let entered = false;
  // Who types quickly may press Enter before the search is loaded: then it counts once there is something to choose from.
  byId('search-input').addEventListener('keydown', ({ key, isComposing }) => (entered = key === 'Enter' && !isComposing));
  addEventListener('focusin', ({ target }) => {
    if (target instanceof Node && !byId('search-body').contains(target)) opener = target;
  });
  menu.addEventListener('toggle', () => {
    if (!menu.open) {
      const focused = document.activeElement;
      // What was chosen in the list hides it: the focus goes back to the map, or to the button.
      const isLost = focused === document.body || byId('search-body').contains(focused);
      if (isLost) (opener instanceof HTMLElement && opener.isConnected ? opener : byId('search-button')).focus();
      return;
    }
    ready ??= import('./search').then(({ setUpSearch }) => setUpSearch(view, page, () => entered));
    ready.then(
      () => byId('search-input').focus(),
      () => {
        ready = null;
        entered = false;
        byId('search-status').textContent = say('failed.server');
      },
    );
  });
  for (const name of ['lines', 'hexagons', 'heat'] as const) {
    const toggle = byId<HTMLInputElement>(`${name}-toggle`);
    byId(name).hidden = name === 'heat' || !settings.lines;
    toggle.checked = view.drawn[name];
    toggle.addEventListener('change', () => {
      view.drawn = { ...view.drawn, [name]: toggle.checked };
      page.redraw();
    });
  }
}
