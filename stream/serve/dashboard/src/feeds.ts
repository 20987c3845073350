/** The picker of feeds, where the server has several. Another feed is another address, so the page is loaded anew. */

import { byId, make } from './dom';
import { parsePlace, placeText } from './place';
import type { View } from './view';

/** What was picked is loaded at once; what the arrow keys chose, with Enter or when the picker is left. */
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
