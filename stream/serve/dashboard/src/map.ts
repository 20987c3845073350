/** The map: hexagons in one GeoJSON source, coloured by feature state; hover, selection and place. */

import {
  AttributionControl,
  Map as MapLibre,
  Marker,
  NavigationControl,
  ScaleControl,
  addProtocol,
  setWorkerUrl,
  type ExpressionSpecification,
  type GeoJSONSource,
  type LayerSpecification,
  type StyleSpecification,
} from 'maplibre-gl';
import workerAddress from 'maplibre-gl/dist/maplibre-gl-worker.mjs?worker&url';
import type { Feature, FeatureCollection, Geometry } from 'geojson';
import { Protocol } from 'pmtiles';
import { LINES, bare, described, ground, lines, streets, type Archive, type Ground } from './basemap';
import { make } from './dom';
import { shapeKey, shapeOf, type Shape } from './hexagons';
import { isLarge } from './large';
import { MAP_COLOURS, type MapColours, type Theme } from './palette';
import type { Spot } from './search';
import { unit } from './units';
import type { Box, Hexagon, Settings } from './types';

/** How one hexagon looks: its class (-1: none known), its opacity, whether it is hatched. */
export interface Look {
  hexagon: Hexagon;
  index: number;
  opacity: number;
  hatched: boolean;
}

interface State {
  c: number;
  o: number;
  h: number;
}

const SCALES = { 'km/h': 'metric', mph: 'imperial' } as const;
/** Pixels of names on the map, and of those on a screen on the wall. */
const LETTERS = 12;
const LARGE_LETTERS = 20;
/** Most pixels of the scale, and of that on a screen on the wall. */
const LONGEST = 100;
const LARGE_LONGEST = 260;
/** Cells of fewer pixels have no outline: many of them would be a grid of lines that hides the colours. */
const LEAST_OUTLINED = 16;
/** Kilometres across an average cell of resolution 0 (H3), and along the equator on a pixel at zoom 0. */
const ACROSS = 2219;
const PIXEL = 40_075 / 512;
const HIDDEN: State = { c: -1, o: 0, h: 0 };
/** Shapes of other windows that are kept beside twice as many as the one on display has. */
const MOST_HIDDEN = 2_000;
const NOTHING: Ground = { sources: {}, layers: [] };

type Stroke = { colour: string; width: number };

/** What is drawn over the hexagons. One source holds all of it: each costs a stencil of the whole map in every frame. */
type Mark = 'area' | 'alert' | 'selection';

const marked = (mark: Mark): ExpressionSpecification => ['==', ['get', 'mark'], mark];

const feature = (mark: Mark, geometry: Geometry): Feature => ({ type: 'Feature', properties: { mark }, geometry });

/** Outlines on a halo that sets them off from what lies below. */
function outlines(mark: Mark, outline: Stroke, halo: Stroke): LayerSpecification[] {
  const layer = (id: string, { colour, width }: Stroke): LayerSpecification => ({
    id,
    type: 'line',
    source: 'marks',
    filter: marked(mark),
    layout: { 'line-join': 'round' },
    paint: { 'line-color': colour, 'line-width': width },
  });
  return [layer(`${mark}-halo`, halo), layer(mark, outline)];
}

/** Colour of the outlines of cells: from the zoom on at which those of their resolution are large enough. */
function outlined({ edge, land }: MapColours): ExpressionSpecification {
  const steps = Array.from({ length: 16 }, (_, resolution) => {
    const zoom = Math.log2((LEAST_OUTLINED * PIXEL) / (ACROSS / Math.sqrt(7) ** resolution));
    return [zoom, ['case', ['<=', ['get', 'resolution'], resolution], edge, land]];
  });
  return ['step', ['zoom'], land, ...steps.flat()] as ExpressionSpecification;
}

export class HexagonMap {
  readonly map: MapLibre;
  private readonly identifiers = new Map<string, number>();
  private readonly states = new Map<number, State>();
  private features: Feature[] = [];
  private made = 0;
  private colours: string[] = [];
  private theme: Theme;
  private selection: Shape | null = null;
  private area: Geometry | null = null;
  private lined = false;
  private spot: Marker | null = null;
  private alerting: Shape[] = [];
  /** What was asked of the map so far is done: a style that is being replaced has no sources to change. */
  private done: Promise<void>;
  private isDrawn = false;
  /** The graphics processor is there. While it is not, the map has no style. */
  private restored: Promise<unknown> = Promise.resolve();
  /** What is in the archive of streets; null where there is none, or where it could not be read yet. */
  private archive: Archive | null = null;
  private asked: Promise<Archive> | null = null;
  /** What is to be on the screen, and what tells whoever waited for what was there before. */
  private wanted: { looks: Look[]; colours: string[] } = { looks: [], colours: [] };
  private giveWay: () => void = () => undefined;
  private readonly protocol = new Protocol();
  private readonly scale = new ScaleControl({ unit: SCALES[unit()], maxWidth: isLarge() ? LARGE_LONGEST : LONGEST });

  constructor(
    container: HTMLElement,
    private readonly settings: Settings,
    theme: Theme,
    start: { center: [number, number]; zoom: number } | { bounds: Box },
    lined: boolean,
  ) {
    this.theme = theme;
    this.lined = lined;
    setWorkerUrl(new URL(workerAddress, import.meta.url).href);
    addProtocol('pmtiles', this.protocol.tile);
    const place = 'bounds' in start ? { bounds: start.bounds } : start;
    this.map = new MapLibre({
      container,
      style: bare(MAP_COLOURS[theme]),
      ...place,
      attributionControl: false,
      dragRotate: false,
      pitchWithRotate: false,
      maxPitch: 0,
      renderWorldCopies: false,
      fadeDuration: 0,
      canvasContextAttributes: { preserveDrawingBuffer: false },
    });
    this.map.touchZoomRotate.disableRotation();
    this.map.keyboard.disableRotation();
    this.map.addControl(new NavigationControl({ showCompass: false }), 'bottom-right');
    this.map.addControl(this.scale, 'bottom-left');
    this.map.setMissingStyleImageResolver((id) => this.addHatch(id));
    this.done = new Promise((resolve) => this.map.once('load', () => resolve()));
    this.map.on('webglcontextlost', () => this.comeBack());
    if (settings.basemap) {
      this.map.addControl(new AttributionControl({ compact: true }), 'bottom-left');
      this.ask();
    }
  }

  /** Do it once everything asked before is done. */
  private inTurn(work: () => void | Promise<void>): Promise<void> {
    const mine = this.done.then(() => this.restored).then(work);
    this.done = mine.catch(() => undefined);
    return mine;
  }

  /** A graphics processor that was reset, or that slept, has lost everything. MapLibre builds the style anew, without states. */
  private comeBack(): void {
    const isThere = new Promise((resolve) => this.map.once('webglcontextrestored', resolve));
    this.restored = isThere.then(() => (this.isDrawn ? this.replaced(this.style()) : undefined));
  }

  /** Read what is in the archive of streets. */
  private ask(): void {
    this.asked = described(this.protocol, new URL('dashboard/basemap.pmtiles', document.baseURI).href);
    this.asked.catch((error: unknown) => console.warn('The basemap cannot be drawn.', error));
  }

  /** Draw the ground, unless it is drawn: at once where there is no window yet, else with the first one. */
  begin(): void {
    void this.inTurn(() => this.draw());
  }

  /** Draw everything for the first time. */
  private async draw(): Promise<void> {
    if (this.isDrawn) return;
    this.archive = await (this.asked ?? Promise.resolve(null)).catch(() => null);
    await this.replaced(this.style());
  }

  /** Draw in other colours or letters, also while the server is away. An archive that could not be read is asked for again. */
  private async restyle(): Promise<void> {
    if (this.settings.basemap && !this.archive) {
      this.ask();
      this.archive = await this.asked!.catch(() => null);
    }
    await this.replaced(this.style());
  }

  /** Draw in another style. */
  private async replaced(style: StyleSpecification): Promise<void> {
    this.isDrawn = true;
    this.map.setStyle(style, { diff: false });
    await new Promise((resolve) => this.map.once('style.load', resolve));
    this.restoreStates();
  }

  private style(): StyleSpecification {
    const colours = MAP_COLOURS[this.theme];
    const under = ground(this.settings.domain, colours);
    const below = this.archive ? streets(this.archive, colours, isLarge() ? LARGE_LETTERS : LETTERS) : NOTHING;
    const network = this.settings.lines ? lines(colours, this.lined) : NOTHING;
    const [hexagons, ...over] = this.hexagonLayers(colours);
    return {
      version: 8,
      sources: {
        ...under.sources,
        ...below.sources,
        ...network.sources,
        hexagons: { type: 'geojson', data: { type: 'FeatureCollection', features: this.features }, tolerance: 0.2 },
        marks: { type: 'geojson', data: this.marks() },
      },
      // Lines lie on the hexagons, thin and half transparent, and names on everything; areas under them.
      layers: [
        ...under.layers,
        ...below.layers.filter((layer) => layer.type === 'fill' || layer.type === 'raster'),
        hexagons!,
        ...below.layers.filter((layer) => layer.type === 'line'),
        ...network.layers,
        ...over,
        ...below.layers.filter((layer) => layer.type === 'symbol'),
      ],
    };
  }

  private hexagonLayers(colours: MapColours): LayerSpecification[] {
    const wide = isLarge() ? 2 : 1;
    const hexagons = { source: 'hexagons', layout: { 'fill-sort-key': ['get', 'resolution'] as ExpressionSpecification } };
    return [
      {
        id: 'hexagons',
        type: 'fill',
        ...hexagons,
        paint: {
          'fill-color': this.colourExpression(),
          'fill-opacity': ['coalesce', ['feature-state', 'o'], 0],
          'fill-outline-color': outlined(colours),
        },
      },
      {
        id: 'hatching',
        type: 'fill',
        ...hexagons,
        paint: { 'fill-pattern': `hatch-${this.theme}`, 'fill-opacity': ['coalesce', ['feature-state', 'h'], 0] },
      },
      {
        id: 'area-fill',
        type: 'fill',
        source: 'marks',
        filter: ['all', marked('area'), ['==', ['geometry-type'], 'Polygon']],
        paint: { 'fill-color': colours.selected, 'fill-opacity': 0.08 },
      },
      {
        id: 'area',
        type: 'line',
        source: 'marks',
        filter: marked('area'),
        paint: { 'line-color': colours.selected, 'line-width': 2, 'line-dasharray': [3, 2] },
      },
      {
        id: 'area-corners',
        type: 'circle',
        source: 'marks',
        filter: ['all', marked('area'), ['==', ['geometry-type'], 'Point']],
        paint: { 'circle-color': colours.selected, 'circle-radius': 4, 'circle-stroke-color': colours.land, 'circle-stroke-width': 2 },
      },
      ...outlines('alert', { colour: colours.alert, width: 4 * wide }, { colour: colours.land, width: 7 * wide }),
      ...outlines('selection', { colour: colours.selected, width: 2.5 * wide }, { colour: colours.land, width: 6 * wide }),
    ];
  }

  private colourExpression(): ExpressionSpecification | string {
    const unknown = MAP_COLOURS[this.theme].unknown;
    if (!this.colours.length) return unknown;
    const cases = this.colours.flatMap((colour, index) => [index, colour]);
    return ['match', ['coalesce', ['feature-state', 'c'], -1], ...cases, unknown] as unknown as ExpressionSpecification;
  }

  private marks(): FeatureCollection {
    const features = [
      ...(this.area ? [feature('area', this.area)] : []),
      ...this.alerting.map((shape) => feature('alert', shapeOf(shape))),
      ...(this.selection ? [feature('selection', shapeOf(this.selection))] : []),
    ];
    return { type: 'FeatureCollection', features };
  }

  private async remark(): Promise<void> {
    await this.inTurn(() => void this.source('marks')?.setData(this.marks()));
  }

  /**
   * Draw a window. True once it is on the screen; false as soon as another takes its place: nothing is drawn on a screen that
   * is locked, and what waits for that must not hold every window that comes meanwhile.
   */
  show(looks: Look[], colours: string[]): Promise<boolean> {
    this.wanted = { looks, colours };
    this.giveWay();
    return new Promise((resolve, reject) => {
      this.giveWay = () => resolve(false);
      this.inTurn(() => this.place()).then(() => this.map.once('idle', () => resolve(true)).triggerRepaint(), reject);
    });
  }

  /** Give the cells the looks that are wanted now. */
  private async place(): Promise<void> {
    const { looks, colours } = this.wanted;
    if (colours.join() !== this.colours.join()) {
      this.colours = colours;
      if (this.isDrawn) this.map.setPaintProperty('hexagons', 'fill-color', this.colourExpression());
    }
    const isNew = this.addShapes(looks);
    const wanted = new Map(looks.map((look) => [this.identifiers.get(shapeKey(look.hexagon))!, look]));
    const isLess = this.features.length > MOST_HIDDEN + 2 * wanted.size;
    if (isLess) this.forgetShapes(wanted);
    if (!this.isDrawn) await this.draw();
    else if (isNew || isLess) this.source('hexagons')?.setData({ type: 'FeatureCollection', features: this.features });
    for (const id of this.states.keys()) {
      const look = wanted.get(id);
      this.setState(id, look ? { c: look.index, o: look.opacity, h: look.hatched ? 0.8 : 0 } : HIDDEN);
    }
  }

  private addShapes(looks: Look[]): boolean {
    const before = this.features.length;
    for (const { hexagon } of looks) {
      const key = shapeKey(hexagon);
      if (this.identifiers.has(key)) continue;
      const id = (this.made += 1);
      this.identifiers.set(key, id);
      this.states.set(id, HIDDEN);
      this.features.push({
        type: 'Feature',
        id,
        properties: { resolution: hexagon.resolution },
        geometry: shapeOf(hexagon),
      });
    }
    return this.features.length > before;
  }

  /** Keep shapes of this window alone: merged cells have other shapes in every window, and a page may stay open for weeks. */
  private forgetShapes(wanted: Map<number, Look>): void {
    this.features = this.features.filter(({ id }) => wanted.has(Number(id)));
    for (const [key, id] of this.identifiers) {
      if (wanted.has(id)) continue;
      this.identifiers.delete(key);
      this.states.delete(id);
      this.map.removeFeatureState({ source: 'hexagons', id });
    }
  }

  private setState(id: number, state: State): void {
    const old = this.states.get(id)!;
    if (old.c === state.c && old.o === state.o && old.h === state.h) return;
    this.states.set(id, state);
    this.map.setFeatureState({ source: 'hexagons', id }, { ...state });
  }

  private restoreStates(): void {
    this.states.forEach((state, id) => this.map.setFeatureState({ source: 'hexagons', id }, { ...state }));
  }

  /** Diagonal lines, drawn here: the pattern of what is not published. */
  private addHatch(name: string): void {
    const size = 16;
    const canvas = Object.assign(document.createElement('canvas'), { width: size, height: size });
    // In memory: to be read back from the graphics processor, it would wait for every frame that is being drawn.
    const pen = canvas.getContext('2d', { willReadFrequently: true })!;
    pen.strokeStyle = MAP_COLOURS[this.theme].hatch;
    pen.lineWidth = 1.6;
    for (const shift of [-size, 0, size]) {
      pen.moveTo(shift - 2, size + 2);
      pen.lineTo(shift + size + 2, -2);
    }
    pen.stroke();
    this.map.addImage(name, pen.getImageData(0, 0, size, size), { pixelRatio: 2 });
  }

  /** There is none before the first drawing, which begins with all that was asked for until then. */
  private source(name: string): GeoJSONSource | undefined {
    return this.map.getSource(name) as GeoJSONSource | undefined;
  }

  /** Outline a cell, or none. */
  async select(hexagon: Shape | null): Promise<void> {
    if (hexagon === this.selection) return;
    this.selection = hexagon;
    await this.remark();
  }

  /** Outline an area, with its corners where there are points, or none. */
  async outline(area: Geometry | null): Promise<void> {
    this.area = area;
    await this.remark();
  }

  /** Outline the cells that rules name. */
  async alert(cells: Shape[]): Promise<void> {
    if (!cells.length && !this.alerting.length) return;
    this.alerting = cells;
    await this.remark();
  }

  /** Mark a place with its name, or none. */
  mark(spot: Spot | null): void {
    this.spot?.remove();
    if (!spot) return void (this.spot = null);
    const element = make('div', { class: 'spot', role: 'img', 'aria-label': spot.name }, make('bdi', {}, spot.name));
    this.spot = new Marker({ element }).setLngLat(spot.at).addTo(this.map);
  }

  /** Show the lines of routes and the stops, or hide them. */
  async setLines(on: boolean): Promise<void> {
    this.lined = on;
    if (!this.settings.lines) return;
    await this.inTurn(() => {
      if (this.isDrawn) LINES.forEach((id) => void this.map.setLayoutProperty(id, 'visibility', on ? 'visible' : 'none'));
    });
  }

  /** Show distances in the unit of speeds. */
  setUnit(): void {
    this.scale.setUnit(SCALES[unit()]);
  }

  /** Redraw in another theme, or with letters of another size. */
  async setTheme(theme: Theme): Promise<void> {
    this.theme = theme;
    this.scale.options.maxWidth = isLarge() ? LARGE_LONGEST : LONGEST;
    this.setUnit();
    await this.inTurn(() => this.restyle());
    await new Promise((resolve) => this.map.once('idle', resolve));
  }
}
