/** Drawing on the map with the pointer: a box by dragging, a polygon by its corners. */

import type { Position } from 'geojson';
import { boxArea, type Area } from './area';
import { byId, make } from './dom';
import type { Mapped } from './mapless';

export type Form = 'box' | 'polygon';

export interface Strokes {
  /** Refused where the pointer left the Earth. */
  box(area: Area): void;
  /** A polygon has these corners now; `last` where there will be no more. */
  corners(corners: Position[], last: boolean): void;
  /** Escape was pressed. */
  gaveUp(): void;
}

/** Degrees, about a metre: as exact as areas are written. */
const SAME = 1e-5;

export class Drawing {
  form: Form = 'box';
  private from: { x: number; y: number } | null = null;
  /** Corners of the polygon, as they were drawn or typed. */
  corners: Position[] = [];
  private readonly layer = byId('drawing');
  private readonly shape = make('div', { class: 'rubber' });

  constructor(
    private readonly map: Mapped,
    private readonly strokes: Strokes,
  ) {
    this.layer.append(this.shape);
    this.layer.addEventListener('pointerdown', (event) => this.start(event));
    this.layer.addEventListener('pointermove', (event) => this.stretch(event));
    this.layer.addEventListener('pointerup', (event) => this.finish(event));
    this.layer.addEventListener('pointercancel', () => (this.from = null));
    this.layer.addEventListener('dblclick', () => this.form === 'polygon' && this.strokes.corners(this.corners, true));
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.active) this.strokes.gaveUp();
    });
  }

  get active(): boolean {
    return !this.layer.hidden;
  }

  begin(form: Form): void {
    this.form = form;
    this.from = null;
    this.corners = [];
    this.shape.hidden = true;
    this.layer.hidden = false;
  }

  end(): void {
    this.layer.hidden = true;
  }

  /** One more corner of the polygon, unless it is the last one again. */
  add(lng: number, lat: number): void {
    const [lastLng, lastLat] = this.corners.at(-1) ?? [Infinity, Infinity];
    if (Math.abs(lng - lastLng!) < SAME && Math.abs(lat - lastLat!) < SAME) return;
    this.corners = [...this.corners, [lng, lat]];
    this.strokes.corners(this.corners, false);
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
    if (!this.from || this.form !== 'box') return;
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
    if (this.form === 'polygon') return this.add(b.lng, b.lat);
    if (Math.abs(a.lng - b.lng) < SAME || Math.abs(a.lat - b.lat) < SAME) return;
    this.strokes.box(boxArea([Math.min(a.lng, b.lng), Math.min(a.lat, b.lat), Math.max(a.lng, b.lng), Math.max(a.lat, b.lat)], 'ring'));
  }
}
