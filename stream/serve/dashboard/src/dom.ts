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

/** A mark that says whether a number is a model's, as it was released, or a histogram's. */
export const chip = (kind: 'modelled' | 'raw' | 'histogram') => make('span', { class: 'chip' }, say(`chip.${kind}`));
