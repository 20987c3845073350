/** The area that is open, or being drawn: its card and its outline. */

import type { Geometry, Position } from 'geojson';
import { areaKey, linesWith, ringOf, type Area } from './area';
import { byId, covered } from './dom';
import { Drawing, type Form } from './drawing';
import { boxOf } from './hexagons';
import type { Page } from './page';
import type { Mapped } from './mapless';
import { boundsForm, cornersForm, counts, forms, heading } from './measure';
import { together } from './named';
import { say } from './texts';
import type { AreaStatistics, Box } from './types';
import type { View } from './view';

export class Areas {
  private readonly drawing: Drawing;
  /** The area that was opened and not answered yet. */
  private asked: Area | null = null;
  /** The area of an address that names no place: the map moves to it, of whatever kind it is. */
  private readonly first: Area | null;

  constructor(
    private readonly view: View,
    private readonly map: Mapped,
    private readonly page: Page,
    isPlaced: boolean,
  ) {
    this.first = isPlaced ? null : view.area;
    this.asked = this.first;
    this.drawing = new Drawing(map, {
      box: (area) => this.open(area),
      corners: (corners, last) => this.sketch(corners, last),
      gaveUp: () => this.stop(true),
    });
    if (view.area) this.outline(view.area);
  }

  get isDrawing(): boolean {
    return this.drawing.active;
  }

  /** Open an area; a named one moves the map to it. */
  open(area: Area): void {
    this.stop();
    this.view.selected = null;
    this.view.area = area;
    this.outline(area);
    this.asked = area;
    this.show();
    this.page.areaChanged();
  }

  /** Begin to draw, or give up drawing. */
  toggle(): void {
    if (this.isDrawing) return this.stop(true);
    this.view.selected = null;
    this.clear();
    this.draw(this.drawing.form);
    this.page.areaChanged();
  }

  /** No area is open any more. */
  clear(): void {
    this.view.area = null;
    void this.map.outline(null);
  }

  stop(redraw = false): void {
    if (!this.isDrawing) return;
    this.drawing.end();
    if (byId('details').contains(document.activeElement)) byId('box-button').focus();
    byId('box-button').setAttribute('aria-pressed', 'false');
    void this.map.outline(null);
    if (redraw) this.page.areaChanged();
  }

  /** The middle of the map is a corner of the polygon; false where none is drawn. */
  corner(): boolean {
    if (!this.isDrawing || this.drawing.form !== 'polygon') return false;
    const { lng, lat } = this.map.map.getCenter();
    this.drawing.add(lng, lat);
    return true;
  }

  /** Fill the card. What is being typed into its form stays. */
  show(): void {
    const { view } = this;
    const { area } = view;
    const form = this.drawing.form;
    const key = area ? areaKey(area) : `new ${form}`;
    const body = byId('details-body');
    const card = heading(view, area, form);
    if (!area) card.push(forms(form, (chosen) => this.draw(chosen)));
    else if (area.kind !== 'refused') card.push(together(view, area, (answer, reading) => this.answered(area, answer, reading), this.page.open));
    if (area?.kind === 'box') card.push(counts(view, area.box));
    byId('details').hidden = false;
    const typed = body.querySelector('form');
    if (typed?.dataset.area !== key) {
      body.replaceChildren(...card, ...this.form(key));
    } else if (area) {
      [...body.children].forEach((child) => child !== typed && child.remove());
      typed.before(...card);
    }
  }

  private form(key: string): HTMLElement[] {
    const { area } = this.view;
    const open = (wanted: Area) => this.open(wanted);
    if (area?.kind === 'named' || area?.kind === 'refused') return [];
    const polygon = area ? area.kind === 'drawn' : this.drawing.form === 'polygon';
    const drawn = area?.kind === 'drawn' ? area.drawn : { ring: [], name: '' };
    const made = polygon
      ? cornersForm(drawn, open, (corners) => this.isDrawing && this.typed(corners))
      : boundsForm(area?.kind === 'box' ? area.box : this.suggestion(), open);
    made.dataset.area = key;
    return [made];
  }

  private draw(form: Form): void {
    byId('box-button').setAttribute('aria-pressed', 'true');
    this.drawing.begin(form);
    void this.map.outline(null);
    byId('details-body').replaceChildren(); // nothing of a drawing that was given up
    this.show();
    byId('details-body').querySelector<HTMLElement>('input:checked')?.focus();
  }

  private suggestion(): Box {
    const bounds = this.map.map.getBounds();
    const [middle, wide, high] = [bounds.getCenter(), (bounds.getEast() - bounds.getWest()) / 4, (bounds.getNorth() - bounds.getSouth()) / 4];
    return [middle.lng - wide, middle.lat - high, middle.lng + wide, middle.lat + high];
  }

  /** A corner was drawn: the field of the form has it too, and the map shows it. */
  private sketch(corners: Position[], last: boolean): void {
    const form = byId('details-body').querySelector<HTMLFormElement>('form.polygon');
    const field = form?.querySelector('textarea');
    if (!form || !field) return;
    field.value = linesWith(corners, field.value);
    byId('status').textContent = say('area.so-far', { count: corners.length });
    this.shape(corners);
    if (last) form.requestSubmit();
  }

  private typed(corners: Position[]): void {
    this.drawing.corners = corners;
    this.shape(corners);
  }

  private shape(corners: Position[]): void {
    const line: Geometry = corners.length > 2 ? { type: 'Polygon', coordinates: [[...corners, corners[0]!]] } : { type: 'LineString', coordinates: corners };
    const points: Geometry = { type: 'MultiPoint', coordinates: corners };
    void this.map.outline({ type: 'GeometryCollection', geometries: corners.length > 1 ? [line, points] : [points] });
  }

  private outline(area: Area): void {
    const ring = ringOf(area);
    void this.map.outline(ring && { type: 'Polygon', coordinates: [[...ring, ring[0]!]] });
  }

  /** Only the first answer after an area was opened moves the map and is announced; later windows repaint in silence. */
  private answered(area: Area, answer: AreaStatistics | null, reading: string): void {
    const shape = answer?.geometry;
    if (shape && area.kind === 'named') void this.map.outline(shape);
    if (this.asked !== area) return;
    this.asked = null;
    const box = shape && (area.kind === 'named' || area === this.first) ? boxOf(shape) : null;
    if (box) this.map.map.fitBounds(box, { padding: covered(), animate: false, maxZoom: 14 });
    if (!this.page.isPlaying()) byId('status').textContent = reading;
  }
}
