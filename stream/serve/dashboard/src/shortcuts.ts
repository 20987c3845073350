/** Keys of the map. They act while the map has the focus only, so that they never take a letter from anything else. */

import { byId } from './dom';
import type { Page } from './page';
import type { TextKey } from './texts';
import type { View } from './view';

/** Every key, as it is printed or by the name of a text, and what it does. */
export const SHORTCUTS: [keys: string, meaning: TextKey][] = [
  ['keys.move', 'keys.move-text'],
  ['Enter', 'keys.enter-text'],
  ['Escape', 'keys.escape-text'],
  ['keys.windows', 'keys.windows-text'],
  ['L', 'keys.l-text'],
  ['P', 'keys.p-text'],
  ['keys.statistic', 'keys.statistic-text'],
  ['D', 'keys.d-text'],
  ['A', 'keys.a-text'],
  ['/', 'keys.search-text'],
  ['T', 'keys.t-text'],
  ['W', 'keys.w-text'],
  ['?', 'keys.about-text'],
];

export function setUpShortcuts(canvas: HTMLElement, view: View, page: Page): void {
  const press = (button: string) => () => byId(button).click();
  const statistic = (index: number) => () => {
    const chosen = view.statistics()[index];
    if (chosen) page.statistic(chosen);
  };
  const keys: Record<string, () => void> = {
    ',': press('earlier'),
    '.': press('later'),
    l: press('live-button'),
    d: () => page.scheme(view.scheme === 'day' ? view.opens : 'day'),
    Enter: page.centre,
    a: press('box-button'),
    p: press('play'),
    '/': () => byId('search').hidden || press('search-button')(),
    t: press('table-button'),
    w: press('large-button'),
    '?': press('about-button'),
    ...Object.fromEntries([0, 1, 2, 3, 4].map((index) => [String(index + 1), statistic(index)])),
  };
  canvas.addEventListener('keydown', (event) => {
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
}
