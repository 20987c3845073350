/** Plays a range of windows one after the other, and offers the same range as files. Nothing moves until somebody asks for it. */

import { links, rangeFields } from './downloads';
import { byId, closing, make } from './dom';
import { rangeAddress } from './api';
import type { Page } from './main';
import { overForm } from './over';
import { decimals, say } from './texts';
import type { View } from './view';

/** Windows per second. More than three changes of a large area in a second could harm people who are sensitive to flashes. */
const SPEEDS = [0.5, 1, 2];

const isReduced = () => matchMedia('(prefers-reduced-motion: reduce)').matches;
const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export class Player {
  private turn = 0;
  private running = false;
  private chosen = 1;

  constructor(
    private readonly view: View,
    private readonly page: Page,
  ) {
    const menu = byId<HTMLDetailsElement>('range');
    menu.addEventListener('toggle', () => menu.open && this.fill());
    closing(menu);
    byId('play').addEventListener('click', () => (this.running ? this.stop() : void this.play()));
  }

  get playing(): boolean {
    return this.running;
  }

  private get speed(): number {
    return isReduced() ? SPEEDS[0]! : this.chosen;
  }

  /** The button, by what there is to play. */
  show(): void {
    const button = byId<HTMLButtonElement>('play');
    button.disabled = !this.running && this.view.played().length < 2;
    button.dataset.playing = String(this.running);
    button.setAttribute('aria-label', say(this.running ? 'timeline.stop' : 'timeline.play'));
    byId('range').hidden = this.view.windows.length < 2;
  }

  stop(): void {
    if (!this.running) return;
    this.turn += 1;
    this.running = false;
    this.page.played();
  }

  /** From the window on display or, where that is the last one or not in the range, from the first. */
  private async play(): Promise<void> {
    const mine = (this.turn += 1);
    this.running = true;
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
      await pause(1000 / this.speed);
    }
    if (mine === this.turn) this.stop();
  }

  private fill(): void {
    const { view } = this;
    const files = make('div');
    const update = () => {
      const played = view.played();
      const [first, last] = [played[0], played.at(-1)];
      files.replaceChildren(
        first && last
          ? links(view, (format) => rangeAddress(view.feed, view.range.from ?? first.window.start, view.range.to ?? last.window.end, format))
          : make('p', { class: 'problem' }, say('timeline.none')),
      );
    };
    const ends = () => ({ from: view.range.from ?? view.windows[0]!.window.start, to: view.range.to ?? view.windows.at(-1)!.window.end });
    const fields = rangeFields(view, ends(), (range) => {
      view.range = range;
      update();
      this.page.played();
    });
    update();
    byId('range-body').replaceChildren(
      make('h2', {}, say('timeline.range')), fields, this.speeds(), make('h2', {}, say('over.title')), make('p', { class: 'quiet' }, say('over.text')),
      overForm(view.over, (days, hours) => this.page.mean({ ...ends(), days, hours })), make('h2', {}, say('download.button')), files);
  }

  private speeds(): HTMLElement {
    const reduced = isReduced();
    const options = (reduced ? SPEEDS.slice(0, 1) : SPEEDS).map((speed) =>
      make('option', { value: speed, selected: speed === this.speed }, decimals(speed, speed % 1 ? 1 : 0)),
    );
    const select = make('select', { name: 'speed' }, ...options);
    select.addEventListener('change', () => (this.chosen = Number(select.value)));
    return make('div', { class: 'range' }, make('label', {}, say('timeline.speed'), select),
      reduced && make('p', { class: 'quiet' }, say('timeline.reduced')));
  }
}
