/** Keys of the map. They act while the map has the focus only, so that they never take a letter from anything else. */

import { byId } from './dom';
import type { Page } from './page';
import type { TextKey } from './texts';
import type { View } from './view';

/** Every key, as it is printed or by the name of a text, what it does, and the button that it presses. */
export const SHORTCUTS: [keys: string, meaning: TextKey, button?: string][] = [
  ['keys.move', 'keys.move-text'],
  ['Enter', 'keys.enter-text'],
  ['Escape', 'keys.escape-text'],
  ['keys.windows', 'keys.windows-text'],
  ['L', 'keys.l-text', 'live-button'],
  ['P', 'keys.p-text', 'play'],
  ['keys.statistic', 'keys.statistic-text'],
  ['D', 'keys.d-text'],
  ['A', 'keys.a-text', 'box-button'],
  ['/', 'keys.search-text'],
  ['T', 'keys.t-text', 'table-button'],
  ['W', 'keys.w-text', 'large-button'],
  ['?', 'keys.about-text', 'about-button'],
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
    d: () => page.scheme(view.scheme === 'day' ? view.opens : 'day'),
    Enter: page.centre,
    '/': () => byId('search').hidden || press('search-button')(),
    ...Object.fromEntries(SHORTCUTS.flatMap(([key, , button]) => (button ? [[key.toLowerCase(), press(button)]] : []))),
    ...Object.fromEntries([0, 1, 2, 3, 4].map((index) => [String(index + 1), statistic(index)])),
  };
  canvas.addEventListener('keydown', (event) => {
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
}
