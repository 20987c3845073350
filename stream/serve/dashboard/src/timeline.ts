/** Window slider, live or paused, and how fresh the newest window is. */

import { byId, make } from './dom';
import type { Page } from './page';
import { say, type TextKey } from './texts';
import { ago, clock, day, hours, length, zoneName } from './times';
import type { WindowSummary } from './types';
import type { View } from './view';

export function setUpTimeline(view: View, page: Page): void {
  const slider = byId<HTMLInputElement>('slider');
  slider.addEventListener('input', () => page.to(Number(slider.value)));
  byId('earlier').addEventListener('click', () => page.to(view.index - 1));
  byId('later').addEventListener('click', () => page.to(view.index + 1));
  byId('live-button').addEventListener('click', () => page.live(!view.live));
}

/** Windows with others that were released later or anew, oldest first. */
export function joined(windows: WindowSummary[], others: WindowSummary[]): WindowSummary[] {
  const all = new Map([...windows, ...others].map((window) => [window.window.start, window]));
  return [...all.values()].sort((a, b) => (a.window.start < b.window.start ? -1 : 1));
}

export function showTimeline(view: View): void {
  const { windows, index, zone } = view;
  const slider = byId<HTMLInputElement>('slider');
  slider.max = String(Math.max(windows.length - 1, 0));
  slider.value = String(index < 0 ? windows.length - 1 : index);
  slider.disabled = windows.length < 2;
  byId<HTMLButtonElement>('earlier').disabled = index <= 0;
  byId<HTMLButtonElement>('later').disabled = index < 0 || index >= windows.length - 1;
  const button = byId('live-button');
  button.setAttribute('aria-pressed', String(view.live));
  button.setAttribute('title', say(view.live ? 'timeline.pause' : 'timeline.follow'));
  byId('live-text').textContent = say(view.live ? 'timeline.following' : 'timeline.paused');
  const bounds = view.window?.window;
  slider.setAttribute('aria-valuetext', view.said || say('timeline.none'));
  const output = byId('window-text');
  if (!bounds) return output.replaceChildren();
  if (view.over) output.replaceChildren(make('strong', {}, say('over.count', { count: view.overWindows })));
  else output.replaceChildren(make('strong', {}, hours(bounds, zone)), ` ${day(bounds.start, zone)} `, make('span', { class: 'zone' }, zoneName(zone)));
  const label = (time: string) => `${day(time, zone).replace(/ \d{4}$/, '')} ${clock(time, zone)}`;
  byId('slider-first').textContent = windows.length > 1 ? label(windows[0]!.window.start) : '';
  byId('slider-last').textContent = windows.length > 1 ? label(windows.at(-1)!.window.end) : '';
}

export interface Freshness {
  state: 'waiting' | 'live' | 'typical' | 'stale' | 'offline';
  text: string;
}

/** How fresh the newest window is. Stale: it ended more than two window lengths ago and none came since as long. What is typical is never called live. */
export function freshness(view: View, { linked, unread }: { linked: boolean; unread: boolean }, arrived: number | null, now: number): Freshness {
  const newest = view.windows.at(-1);
  if (!linked) return { state: 'offline', text: say('badge.offline') };
  if (unread) return { state: 'offline', text: say('badge.unread') };
  if (!newest) return { state: 'waiting', text: say('badge.waiting') };
  const age = now - Date.parse(newest.window.end);
  const patience = 2 * length(newest.window);
  const arriving = arrived !== null && now - arrived <= Math.min(patience, 60_000);
  const [state, key]: [Freshness['state'], TextKey] = age <= patience ? ['live', 'badge.fresh'] : arriving ? ['live', 'badge.arriving'] : ['stale', 'badge.stale'];
  if (view.scheme === 'typical') return { state: state === 'live' ? 'typical' : state, text: say('badge.typical', { ago: ago(age) }) };
  return { state, text: say(key, { ago: ago(age) }) };
}

const ENDED: Freshness['state'][] = ['stale', 'offline'];

export function showBadge({ state, text }: Freshness): void {
  const badge = byId('badge');
  const before = badge.dataset.state as Freshness['state'];
  badge.dataset.state = state;
  // A reader who does not see the colour is told when windows stop and when they come again, not of every minute.
  if (before !== state && (ENDED.includes(before) || ENDED.includes(state))) byId('status').textContent = text;
  const label = byId('badge-text');
  if (label.textContent !== text) label.textContent = text;
}
