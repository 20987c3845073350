/** The cell, place or area that the reader chose, with its card, and the cell below the pointer. */

import { Areas } from './areas';
import { cellCard, statement } from './details';
import { byId, cellName, covered, isolated, make } from './dom';
import { boundsOf, centre } from './hexagons';
import type { Page } from './page';
import type { Mapped } from './mapless';
import { say } from './texts';
import type { Spot } from './types';
import type { View } from './view';

export class Selection {
  readonly areas: Areas;
  private spot: Spot | null = null;
  /** The map shows a place that somebody chose. */
  private placed: boolean;

  constructor(
    private readonly view: View,
    private readonly map: Mapped,
    private readonly page: Page,
    placed: boolean,
  ) {
    this.placed = placed;
    this.areas = new Areas(view, map, page, placed);
    byId('details-close').addEventListener('click', () => this.close());
    byId('box-button').addEventListener('click', () => this.areas.toggle());
    map.map.on('mousemove', ({ point, lngLat }) => this.hover(point.x, point.y, view.at(lngLat.lng, lngLat.lat)?.cell));
    map.map.on('mouseout', () => this.hover());
    map.map.on('click', ({ lngLat }) => this.choose(view.at(lngLat.lng, lngLat.lat)?.cell ?? null));
  }

  choose(cell: string | null, at: Spot | null = null): void {
    this.view.selected = cell;
    this.mark(at);
    byId('tooltip').hidden = true;
    if (cell) {
      this.areas.stop();
      this.areas.clear();
    }
    this.show();
    this.page.selected();
  }

  /** Choose the cell on display that covers this one, and move the map to it. */
  open(cell: string): void {
    this.choose(this.view.covering(cell));
    this.moveTo(centre(cell), 10.5);
  }

  /** Mark a place that was searched, choose the cell in which it lies, and move the map to it. */
  find(spot: Spot): void {
    this.choose(this.view.at(...spot.at)?.cell ?? this.view.covering(spot.cell), spot);
    byId('status').textContent = say('search.found', { name: spot.name });
    this.moveTo(spot.at, 12);
  }

  /** Set a corner of the polygon that is drawn, or choose the cell, in the middle of the map. */
  centre(): void {
    if (this.areas.corner()) return;
    const { lng, lat } = this.map.map.getCenter();
    this.choose(this.view.at(lng, lat)?.cell ?? null);
  }

  /** Another area is open, or none. */
  areaChanged(): void {
    this.mark(null);
    void this.map.select(null);
    byId('details').hidden = !this.view.area && !this.areas.isDrawing;
    this.page.selected();
  }

  /** The card, by the window on display. */
  show(): void {
    const { view, areas, spot } = this;
    const { selected } = view;
    void this.map.select(selected ? (view.cells.get(selected) ?? { cell: selected }) : null);
    byId('details').hidden = !selected && !view.area && !areas.isDrawing;
    const [title, ...rest] = selected ? cellCard(view, selected) : [];
    if (title) byId('details-body').replaceChildren(title, ...(spot ? [make('p', { id: 'spot' }, ...isolated('search.found', { name: [spot.name] }))] : []), ...rest);
    else if (view.area || areas.isDrawing) areas.show();
  }

  /** What the cell below the pointer says; nothing where there is none. */
  hover(x = 0, y = 0, cell?: string): void {
    const [{ view }, tip] = [this, byId('tooltip')];
    tip.hidden = !cell || cell === view.selected || this.areas.isDrawing;
    if (!cell || tip.hidden) return;
    const shown = cell + document.documentElement.dataset.painted;
    if (tip.dataset.shown !== shown) tip.replaceChildren(...(view.names?.of(cell) ? [make('p', { class: 'title' }, ...cellName(view, cell))] : []), ...statement(view, cell));
    tip.dataset.shown = shown;
    const frame = byId('map').getBoundingClientRect();
    const left = Math.min(x + 16, frame.width - tip.offsetWidth - 8);
    const top = y + 18 + tip.offsetHeight > frame.height ? y - tip.offsetHeight - 12 : y + 18;
    tip.style.transform = `translate(${Math.max(left, 8)}px, ${Math.max(top, 8)}px)`;
  }

  /** Move the map to all cells, unless a place was chosen. Header and controls have to say what they will, because both take room of the map. */
  fit(): void {
    const box = this.placed ? null : boundsOf(this.view.cells.values());
    if (!box) return;
    this.placed = true;
    this.map.map.resize();
    this.map.map.fitBounds(box, { padding: covered(), animate: false, maxZoom: 13 });
  }

  /** Move a place to the middle of what the cards leave of the map. */
  private moveTo(center: [number, number], zoom: number): void {
    const { left, right, top, bottom } = covered();
    const animate = !matchMedia('(prefers-reduced-motion: reduce)').matches;
    this.map.map.easeTo({ center, zoom: Math.max(this.map.map.getZoom(), zoom), offset: [(left - right) / 2, (top - bottom) / 2], animate });
  }

  private mark(spot: Spot | null): void {
    this.spot = spot;
    this.map.mark(spot);
  }

  private close(): void {
    this.areas.stop();
    this.areas.clear();
    this.choose(null);
    this.map.map.getCanvas().focus();
  }
}
