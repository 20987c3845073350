/** Elements by id, and elements made from parts. Text is always set as text. */

import type { Called } from './names';
import { fillPage, say, type TextKey } from './texts';

export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element #${id}`);
  return found as T;
}

/** A new element from the template of that name. */
export function made<T extends HTMLElement>(template: string): T {
  const element = byId<HTMLTemplateElement>(template).content.firstElementChild!.cloneNode(true) as T;
  fillPage(element);
  return element;
}

type Part = Node | string | null | undefined | false;

/** Numbers with a dash or ± between them, which stay on one line. */
const RANGE = /(\S*\d[–−]\S*\d\S*|[−+]\d\S* ± \d\S*|−\d\S*)/;
const WRAPPING = ['p', 'td', 'dd', 'th'];

const unbroken = (text: string): Part[] => text.split(RANGE).map((part, at) => (at % 2 ? make('span', { class: 'unbroken' }, part) : part));

/** `attributes` that are functions listen to the event of their name. */
export function make<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Record<string, string | boolean | number | ((event: Event) => void)> = {},
  ...parts: Part[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(key, value);
    else if (value !== false) element.setAttribute(key, value === true ? '' : String(value));
  }
  const whole = parts.flatMap((part) => (typeof part === 'string' && WRAPPING.includes(name) ? unbroken(part) : [part]));
  element.append(...whole.filter((part): part is Node | string => Boolean(part)));
  return element;
}

/** A text whose placeholders are names: each is isolated, so that its direction changes nothing around it. */
export function isolated(key: TextKey, values: Record<string, string[]>): Node[] {
  const marked = say(key, Object.fromEntries(Object.keys(values).map((name) => [name, `\0${name}\0`])));
  const listed = (names: string[]) => names.flatMap((name, at) => [...(at ? [new Text(', ')] : []), make('bdi', {}, name)]);
  return marked.split('\0').flatMap((part, at) => (at % 2 ? listed(values[part]!) : [new Text(part)]));
}

/** The name of a cell, where it has one, and its index. */
export function cellName(view: { names: { called(cell: string): Called | null } | null }, cell: string): HTMLElement[] {
  const called = view.names?.called(cell);
  if (!called) return [make('code', {}, cell)];
  const { key, names, more } = called;
  const said = key === 'place.routes' ? isolated(key, { routes: names }) : key ? isolated(key, { name: names }) : [make('bdi', {}, ...names)];
  return [make('span', { class: 'name' }, ...said, more && ' …'), make('code', { class: 'index' }, cell)];
}

/** A menu closes on Escape and when something else is clicked. */
export function closing(menu: HTMLDetailsElement): void {
  document.addEventListener('click', (event) => {
    if (event.target instanceof Node && !menu.contains(event.target) && event.target.isConnected) menu.open = false;
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !menu.open) return;
    const inside = menu.contains(document.activeElement);
    menu.open = false;
    if (inside) menu.querySelector('summary')?.focus();
  });
}

/** A mark that says whether a number is a model's, as it was released, or a histogram's. */
export type Mark = 'modelled' | 'raw' | 'histogram';
export const chip = (kind: Mark) => make('span', { class: 'chip' }, say(`chip.${kind}`));

/** A row of a legend. */
export const row = (label: string, colour: string) => make('li', {}, swatch(colour, 1), label);

/** A colour, or one of the marks that have names. */
export function swatch(colour: string, strength: number): HTMLElement {
  const special = ['hatch', 'unknown', 'nobody'].includes(colour);
  const outer = make('span', { class: special ? `swatch ${colour}` : 'swatch', 'aria-hidden': 'true' });
  if (special) return outer;
  const inner = make('span');
  inner.style.backgroundColor = colour;
  inner.style.opacity = String(strength);
  outer.append(inner);
  return outer;
}

/** Pixels that the buttons for the zoom take at the right. */
const BUTTONS = 48;
const NARROW = 720;

/** Pixels that cards cover at each side of the map, with some air; the air alone where they leave nearly nothing. */
export function covered() {
  const frame = byId('map').getBoundingClientRect();
  const air = frame.width < NARROW ? 12 : 28;
  const plain = { left: air, right: BUTTONS, top: air, bottom: air };
  const sides = { ...plain };
  const widen = (side: keyof typeof plain, pixels: number) => (sides[side] = Math.max(sides[side], pixels + air));
  for (const card of [byId('controls'), byId('details')].filter((element) => element.checkVisibility())) {
    const { left, right, top, bottom, width } = card.getBoundingClientRect();
    if (width <= frame.width / 2) left - frame.left < frame.right - right ? widen('left', right - frame.left) : widen('right', frame.right - left);
    else if (top - frame.top < frame.bottom - bottom) widen('top', bottom - frame.top);
    // It grows to this when the past of the cell has arrived.
    else widen('bottom', (frame.height * parseFloat(getComputedStyle(card).maxHeight)) / 100 + frame.bottom - bottom);
  }
  const isRoom = sides.left + sides.right < 0.9 * frame.width && sides.top + sides.bottom < 0.9 * frame.height;
  return isRoom ? sides : plain;
}
