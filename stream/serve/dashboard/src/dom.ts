/** Elements by id, and elements made from parts. Text is always set as text. */

import { say } from './texts';

export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element #${id}`);
  return found as T;
}

type Part = Node | string | null | undefined | false;

export function make<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Record<string, string | boolean | number> = {},
  ...parts: Part[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false) element.setAttribute(key, value === true ? '' : String(value));
  }
  element.append(...parts.filter((part): part is Node | string => Boolean(part)));
  return element;
}

/** The name of a cell, where it has one, and its index. Names are isolated, so that their direction changes nothing around them. */
export function cellName(view: { names: { of(cell: string): string | null } | null }, cell: string): HTMLElement[] {
  const name = view.names?.of(cell);
  return name ? [make('bdi', { class: 'name' }, name), make('code', { class: 'index' }, cell)] : [make('code', {}, cell)];
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
export const chip = (kind: 'modelled' | 'raw' | 'histogram') => make('span', { class: 'chip' }, say(`chip.${kind}`));
