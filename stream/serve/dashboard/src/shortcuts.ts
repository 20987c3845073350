/** Keys of the map. They act while the map has the focus only, so that they never take a letter from anything else. */

import { byId } from './dom';
import type { TextKey } from './texts';

export interface Actions {
  earlier(): void;
  later(): void;
  live(): void;
  statistic(index: number): void;
  /** Compare with another day, or no more. */
  day(): void;
  /** Choose the cell under the cross in the middle. */
  centre(): void;
  /** As if the button of that id were pressed. */
  press(button: 'box-button' | 'play' | 'search-button' | 'table-button' | 'about-button' | 'large-button'): void;
}

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

export function setUpShortcuts(canvas: HTMLElement, actions: Actions): void {
  const keys: Record<string, () => void> = {
    ',': actions.earlier,
    '.': actions.later,
    l: actions.live,
    d: actions.day,
    Enter: actions.centre,
    a: () => actions.press('box-button'),
    p: () => actions.press('play'),
    '/': () => byId('search').hidden || actions.press('search-button'),
    t: () => actions.press('table-button'),
    w: () => actions.press('large-button'),
    '?': () => actions.press('about-button'),
    ...Object.fromEntries([0, 1, 2, 3, 4].map((index) => [String(index + 1), () => actions.statistic(index)])),
  };
  canvas.addEventListener('keydown', (event) => {
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
}
