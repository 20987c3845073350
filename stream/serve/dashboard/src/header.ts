/** What the reader chooses in the header: feed, language, light or dark, and large letters. */

import { byId, make } from './dom';
import { keep, recall } from './kept';
import type { Theme } from './palette';
import { parsePlace, placeText } from './place';
import { LANGUAGES, language, remember, type Language } from './texts';
import type { View } from './view';

/** Light or dark: the system's choice until the reader makes one. */
const THEME = 'hexveil-theme';
const dark = matchMedia('(prefers-color-scheme: dark)');

function theme(): Theme {
  const chosen = recall(THEME);
  return chosen === 'light' || chosen === 'dark' ? chosen : dark.matches ? 'dark' : 'light';
}

function apply(): Theme {
  const now = theme();
  document.documentElement.dataset.theme = now;
  byId('theme-button').setAttribute('aria-pressed', String(now === 'dark'));
  return now;
}

/** Sets the page's theme now and calls `then` on every later change. */
export function setUpTheme(then: (theme: Theme) => void): Theme {
  byId('theme-button').addEventListener('click', () => {
    keep(THEME, theme() === 'dark' ? 'light' : 'dark');
    then(apply());
  });
  dark.addEventListener('change', () => then(apply()));
  return apply();
}

const root = document.documentElement;

/** Large letters for a screen on the wall: chosen by a button or key, and by the address, so that a kiosk starts with it. */
export const isLarge = () => root.dataset.large === 'true';

/** `then` is called after every change. */
export function setUpLarge(on: boolean, then: () => void): void {
  const apply = (large: boolean) => {
    root.dataset.large = String(large);
    byId('large-button').setAttribute('aria-pressed', String(large));
  };
  apply(on);
  byId('large-button').addEventListener('click', () => {
    apply(!isLarge());
    then();
  });
}

/** Of each language its own name; Intl knows them, too, but reads its data of every language for them. */
const NAMES: Record<Language, string> = { en: 'English', de: 'Deutsch', es: 'español', fr: 'français', pl: 'polski' };

/** Fill the picker; another choice loads the page again, with the view in the address. */
export function setUpLanguage(): void {
  const picker = byId<HTMLSelectElement>('language');
  for (const code of LANGUAGES) {
    picker.append(make('option', { value: code, lang: code, selected: code === language }, NAMES[code]));
  }
  picker.addEventListener('change', () => {
    remember(picker.value);
    location.reload();
  });
}

/** Another feed is another address, so the page is loaded anew. What was picked is loaded at once; what the arrow keys chose, with Enter or when the picker is left. */
export function setUpFeeds(view: View): void {
  const picker = byId<HTMLSelectElement>('feed');
  let keyed = false;
  let leaving = false;
  const load = () => {
    if (leaving || picker.value === view.feed) return;
    leaving = true;
    const { at, statistic, colours, day, values, large } = parsePlace(location.hash + location.search.replace('?', '&'));
    history.pushState(null, '', location.pathname + placeText({ at, statistic, colours, day, values, large, feed: picker.value }));
    location.reload();
  };
  picker.addEventListener('pointerdown', () => (keyed = false));
  picker.addEventListener('keydown', ({ key }) => {
    keyed = true;
    if (key === 'Enter') load();
  });
  picker.addEventListener('change', () => keyed || load());
  picker.addEventListener('blur', load);
}

/** Offer these feeds and that of the address, which may have no windows. What is being chosen stays. */
export function showFeeds(view: View, feeds: string[]): void {
  const picker = byId<HTMLSelectElement>('feed');
  const all = [...new Set([...feeds, view.feed])].sort();
  picker.hidden = all.length < 2;
  if ([...picker.options].map(({ value }) => value).join() === all.join()) return;
  const chosen = picker.value || view.feed;
  picker.replaceChildren(...all.map((feed) => make('option', { value: feed, selected: feed === chosen }, feed)));
}
