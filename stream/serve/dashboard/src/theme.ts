/** Light or dark: the system's choice until the reader makes one. */

import { byId } from './dom';
import type { Theme } from './palette';

const KEY = 'hexveil-theme';
const dark = matchMedia('(prefers-color-scheme: dark)');

const stored = (): Theme | null => {
  try {
    const found = localStorage.getItem(KEY);
    return found === 'light' || found === 'dark' ? found : null;
  } catch {
    return null;
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
    try {
      localStorage.setItem(KEY, theme() === 'dark' ? 'light' : 'dark');
    } catch {
      return;
    }
    then(apply());
  });
  dark.addEventListener('change', () => then(apply()));
  return apply();
}
