/** What the operator's files of the city add to the page: the search with the list of areas, and the switches for lines and hexagons. */

import { byId, closing } from './dom';
import type { Page } from './page';
import { say } from './texts';
import type { Settings } from './types';
import type { View } from './view';

export function setUpCity(view: View, settings: Settings, page: Page): void {
  const menu = byId<HTMLDetailsElement>('search');
  menu.hidden = !settings.places && !settings.areas;
  closing(menu);
  let ready: Promise<void> | null = null;
  let opener: EventTarget | null = null;
  addEventListener('focusin', ({ target }) => {
    if (target instanceof Node && !byId('search-body').contains(target)) opener = target;
  });
  menu.addEventListener('toggle', () => {
    if (!menu.open) {
      const focused = document.activeElement;
      // What was chosen in the list hides it: the focus goes back to the map, or to the button.
      const isLost = focused === document.body || byId('search-body').contains(focused);
      if (isLost) (opener instanceof HTMLElement && opener.isConnected ? opener : byId('search-button')).focus();
      return;
    }
    ready ??= import('./search').then(({ setUpSearch }) => setUpSearch(view, page));
    ready.then(
      () => byId('search-input').focus(),
      () => {
        ready = null;
        byId('search-status').textContent = say('failed.server');
      },
    );
  });
  for (const name of ['lines', 'hexagons', 'heat'] as const) {
    const toggle = byId<HTMLInputElement>(`${name}-toggle`);
    byId(name).hidden = name === 'heat' || !settings.lines;
    toggle.checked = view.drawn[name];
    toggle.addEventListener('change', () => {
      view.drawn = { ...view.drawn, [name]: toggle.checked };
      page.redraw();
    });
  }
}
