/** The picker of feeds, where the server has several. Another feed is another address, so the page is loaded anew. */

import { byId, make } from './dom';
import { placeText } from './place';
import type { View } from './view';

/** `named`: the feed of the address, which may have no windows; its choice stays possible. */
export function setUpFeeds(view: View, feeds: string[]): void {
  const picker = byId<HTMLSelectElement>('feed');
  const all = [...new Set([...feeds, view.feed])].sort();
  picker.hidden = all.length < 2;
  picker.replaceChildren(...all.map((feed) => make('option', { value: feed, selected: feed === view.feed }, feed)));
  picker.addEventListener('change', () => {
    history.pushState(null, '', location.pathname + placeText({ feed: picker.value }));
    location.reload();
  });
}
