/** Light or dark: the system's choice until the reader makes one. */

import { byId } from './dom';
import type { Theme } from './palette';

const KEY = 'hexveil-theme';
const dark = matchMedia('(prefers-color-scheme: dark)');

/** The reader's choice where nothing can be stored, as in a frame of another site. */
let chosen: Theme | null = null;

const stored = (): Theme | null => {
  try {
    const found = localStorage.getItem(KEY);
    return found === 'light' || found === 'dark' ? found : chosen;
  } catch {
    return chosen;
  }
};

const theme = (): Theme => stored() ?? (dark.matches ? 'dark' : 'light');

function apply(): Theme {
  const now = theme();
  document.documentElement.dataset.theme = now;
  byId('theme-button').setAttribute('aria-pressed', String(now === 'dark'));
  return now;
}

/** Sets the page's theme now and calls `then` on every later change. */
export function setUpTheme(then: (theme: Theme) => void): Theme {
  byId('theme-button').addEventListener('click', () => {
    chosen = theme() === 'dark' ? 'light' : 'dark';
    try {
      localStorage.setItem(KEY, chosen);
    } catch {
      // The choice holds until the page is closed.
    }
    then(apply());
  });
  dark.addEventListener('change', () => then(apply()));
  return apply();
}
