/** Light or dark: the system's choice until the reader makes one. */

import { byId } from './dom';
import { keep, recall } from './kept';
import type { Theme } from './palette';

const KEY = 'hexveil-theme';
const dark = matchMedia('(prefers-color-scheme: dark)');

function theme(): Theme {
  const chosen = recall(KEY);
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
    keep(KEY, theme() === 'dark' ? 'light' : 'dark');
    then(apply());
  });
  dark.addEventListener('change', () => then(apply()));
  return apply();
}
