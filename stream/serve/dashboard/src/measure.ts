/** Drawing a box and telling what is inside: hexagons together, and the spatial histogram's count. */

import { ApiError, count } from './api';
import { counted, together } from './area';
import { byId, chip, make } from './dom';
import type { HexagonMap } from './map';
import { sentence } from './statistics';
import { decimals, say, type TextKey } from './texts';
import { when } from './times';
import type { Box } from './types';
import type { View } from './view';

/** Drag a rectangle over the map; Escape gives up. Calls `done` with the box, or null. */
export class Drawing {
  private from: { x: number; y: number } | null = null;
  private readonly layer = byId('drawing');
  private readonly shape = make('div', { class: 'rubber' });

  constructor(
    private readonly map: HexagonMap,
    private readonly done: (box: Box | null) => void,
  ) {
    this.layer.append(this.shape);
    this.layer.addEventListener('pointerdown', (event) => this.start(event));
    this.layer.addEventListener('pointermove', (event) => this.stretch(event));
    this.layer.addEventListener('pointerup', (event) => this.finish(event));
    this.layer.addEventListener('pointercancel', () => (this.from = null));
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.active) this.end(null);
    });
  }

  get active(): boolean {
    return !this.layer.hidden;
  }

  begin(): void {
    this.from = null;
    this.shape.hidden = true;
    this.layer.hidden = false;
  }

  end(box: Box | null): void {
    this.layer.hidden = true;
    this.done(box);
  }

  private place(event: PointerEvent): { x: number; y: number } {
    const frame = this.layer.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  }

  private start(event: PointerEvent): void {
    this.from = this.place(event);
    this.layer.setPointerCapture(event.pointerId);
  }

  private stretch(event: PointerEvent): void {
    if (!this.from) return;
    const to = this.place(event);
    Object.assign(this.shape.style, {
      left: `${Math.min(this.from.x, to.x)}px`,
      top: `${Math.min(this.from.y, to.y)}px`,
      width: `${Math.abs(to.x - this.from.x)}px`,
      height: `${Math.abs(to.y - this.from.y)}px`,
    });
    this.shape.hidden = false;
  }

  private finish(event: PointerEvent): void {
    if (!this.from) return;
    const to = this.place(event);
    const [a, b] = [this.map.map.unproject([this.from.x, this.from.y]), this.map.map.unproject([to.x, to.y])];
    this.from = null;
    if (Math.abs(a.lng - b.lng) < 1e-6 || Math.abs(a.lat - b.lat) < 1e-6) return;
    const round = (number: number) => Math.round(number * 1e5) / 1e5;
    this.end([Math.min(a.lng, b.lng), Math.min(a.lat, b.lat), Math.max(a.lng, b.lng), Math.max(a.lat, b.lat)].map(round) as Box);
  }
}

/** The card of a box: bounds to type or draw, and the answers once there is one. */
export function areaCard(view: View, suggestion: Box, measure: (box: Box) => void): HTMLElement[] {
  const box = view.box;
  return [
    make('h2', {}, say('area.title')),
    make('p', { class: 'quiet' }, box && view.window ? when(view.window.window, view.zone) : say('area.how')),
    ...(box ? answers(view, box) : []),
    bounds(box ?? suggestion, measure),
  ];
}

const SIDES: TextKey[] = ['area.west', 'area.south', 'area.east', 'area.north'];

function bounds(box: Box, measure: (box: Box) => void): HTMLElement {
  const inputs = SIDES.map((side, index) =>
    make('input', { type: 'number', step: 'any', name: side.slice(5), required: true, value: box[index]!.toFixed(4) }),
  );
  const problem = make('p', { class: 'problem', role: 'alert' });
  const labels = SIDES.map((side, index) => make('label', {}, say(side), inputs[index]!));
  const form = make('form', { class: 'bounds' }, ...labels, make('button', { type: 'submit' }, say('area.measure')), problem);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const [west, south, east, north] = inputs.map((input) => input.valueAsNumber) as Box;
    const good = west < east && south < north && west >= -180 && east <= 180 && south >= -90 && north <= 90;
    problem.textContent = good ? '' : say('area.wrong');
    if (good) measure([west, south, east, north]);
  });
  return form;
}

function answers(view: View, box: Box): HTMLElement[] {
  const found = together(view.cells.values(), box, view.upper);
  const histogram = make('div', { id: 'histogram-count' }, say('area.asking'));
  void fillCounts(view, box, histogram);
  const { value, low, high, exact, ofUsers } = found.events;
  const range = exact ? say('area.exact') : say('area.noisy', { low: decimals(low, 0), high: decimals(high, 0) });
  const none = make('p', { class: 'reading' }, say(exact || !found.published ? 'area.nothing' : 'area.unweighted'));
  return [
    found.mean ? make('p', { class: 'reading', id: 'area-mean' }, sentence(found.mean), chip('raw')) : none,
    make('p', { class: 'quiet' }, say('area.mean', { published: found.published, cells: found.cells })),
    make('p', {}, say(ofUsers ? 'area.cell-users' : 'area.events', { value: decimals(value, 0), range })),
    histogram,
  ];
}

/** What every spatial histogram of the window says of the box. */
async function fillCounts(view: View, box: Box, target: HTMLElement): Promise<void> {
  const mechanisms = view.histograms;
  if (!mechanisms.length) {
    target.textContent = say('area.no-histogram');
    return;
  }
  const start = view.window!.window.start;
  const said = mechanisms.map((mechanism) =>
    count(view.feed, start, mechanism, box).then(counted, (error: unknown) =>
      say('area.histogram-failed', { mechanism, reason: error instanceof ApiError ? error.message : say('failed.server') })),
  );
  target.replaceChildren(...(await Promise.all(said)).map((text) => make('p', {}, chip('histogram'), ` ${text}`)));
}
