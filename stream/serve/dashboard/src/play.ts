/** Plays a range of windows one after the other, or shows their mean. Nothing moves until somebody asks for it. */

import { rangeFields } from './downloads';
import { byId, closing } from './dom';
import type { Page } from './page';
import { setUpOver, showOver } from './over';
import { say } from './texts';
import type { View } from './view';

/** Milliseconds between two windows. More than three changes of a large area in a second could harm people who are sensitive to flashes. */
const [USUAL, REDUCED] = [1_000, 2_000];

const pause = () => new Promise((resolve) => setTimeout(resolve, matchMedia('(prefers-reduced-motion: reduce)').matches ? REDUCED : USUAL));

export class Player {
  private turn = 0;
  playing = false;

  constructor(
    private readonly view: View,
    private readonly page: Page,
  ) {
    const menu = byId<HTMLDetailsElement>('range');
    menu.addEventListener('toggle', () => menu.open && this.fill());
    closing(menu);
    setUpOver((days, hours) => this.page.mean({ ...this.ends, days, hours }));
    byId('play').addEventListener('click', () => (this.playing ? this.stop() : void this.play()));
  }

  /** The button, by what there is to play. */
  show(): void {
    const button = byId<HTMLButtonElement>('play');
    button.disabled = !this.playing && this.view.played().length < 2;
    button.dataset.playing = String(this.playing);
    button.setAttribute('aria-label', say(this.playing ? 'timeline.stop' : 'timeline.play'));
    byId('range').hidden = this.view.windows.length < 2;
  }

  stop(): void {
    if (!this.playing) return;
    this.turn += 1;
    this.playing = false;
    this.page.played();
  }

  /** From the window on display or, where that is the last one or not in the range, from the first. */
  private async play(): Promise<void> {
    const mine = (this.turn += 1);
    this.playing = true;
    this.page.played();
    const shown = this.view.window?.window.start ?? '';
    const later = this.view.played().filter(({ window }) => window.start > shown);
    const isInside = this.view.played().some(({ window }) => window.start === shown);
    let next = isInside && later.length ? later[0] : this.view.played()[0];
    while (next && mine === this.turn) {
      const { start } = next.window;
      const showing = this.page.play(next);
      next = this.view.played().find(({ window }) => window.start > start);
      if (next) this.page.prepare(next);
      await showing;
      // From the paint, not from the request: else two windows could follow at once after one that came late.
      await pause();
    }
    if (mine === this.turn) this.stop();
  }

  /** Where the range of windows ends now. */
  private get ends(): { from: string; to: string } {
    const { range, windows } = this.view;
    return { from: range.from ?? windows[0]!.window.start, to: range.to ?? windows.at(-1)!.window.end };
  }

  private fill(): void {
    const { view } = this;
    const check = () => (byId('range-none').hidden = view.played().length > 0);
    check();
    byId('range-ends').replaceChildren(rangeFields(view, this.ends, (range) => {
      view.range = range;
      check();
      this.page.played();
    }));
    if (view.over) showOver(view.over);
  }
}
