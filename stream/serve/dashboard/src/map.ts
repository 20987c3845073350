/** The map: hexagons on the ground, under names; hover, selection and place. */

import {
  AttributionControl,
  Map as MapLibre,
  Marker,
  NavigationControl,
  ScaleControl,
  addProtocol,
  prewarm,
  setWorkerUrl,
  type ExpressionSpecification,
  type GeoJSONSource,
  type LayerSpecification,
} from 'maplibre-gl';
import workerAddress from 'maplibre-gl/dist/maplibre-gl-worker.mjs?worker&url';
import type { Feature, FeatureCollection, Geometry } from 'geojson';
import { Protocol } from 'pmtiles';
import { lines } from './api';
import { LAND_UNTIL, STOPS, described, network, roads, sea, stops, streetNames, streets, withoutMarkup, type Archive, type Ground } from './basemap';
import { make } from './dom';
import { shapeOf, type Shape } from './hexagons';
import { HEAT, heatLayer } from './heat';
import { isLarge } from './header';
import { HexagonLayer, type Look } from './hexagonlayer';
import { LineLayer } from './linelayer';
import type { Line } from './lines';
import { NUMBERS, numbersLayer, numbersOf, type NumberOf } from './numbers';
import { mapColours } from './palette';
import { chosenUnit } from './units';
import type { Box, Drawn, HeatFeatures as Heat, Settings, Spot } from './types';

const SCALES = { 'km/h': 'metric', mph: 'imperial' } as const;
/** Pixels of names on the map, and most of the scale; on a screen on the wall they are larger. */
const letters = () => (isLarge() ? 20 : 12);
const longest = () => (isLarge() ? 260 : 100);
const NOTHING: Ground = { sources: {}, layers: [] };

/** What is drawn over the hexagons. One source holds all of it: each costs a stencil of the whole map in every frame. */
type Mark = 'area' | 'alert' | 'selection';

const of = (mark: Mark): ExpressionSpecification => ['==', ['get', 'mark'], mark];

/** Outlines on a halo, which comes first and sets them off from what lies below. */
const outlines = (mark: Mark, strokes: [colour: string, width: number][]): LayerSpecification[] =>
  strokes.map(([colour, width], at) => ({
    id: at ? mark : `${mark}-halo`,
    type: 'line',
    source: 'marks',
    filter: of(mark),
    layout: { 'line-join': 'round' },
    paint: { 'line-color': colour, 'line-width': width },
  }));

/** MapLibre draws a frame for every tile of a source that changes; this one draws one as soon as all are there, or the map moves. */
class SteadyMap extends MapLibre {
  /** Sources whose tiles are awaited, and whether their worker has read what changed. */
  private changing: Map<GeoJSONSource, boolean> | undefined;

  change(source: GeoJSONSource, data: FeatureCollection): void {
    const changing = (this.changing ??= new Map());
    // A source that was never drawn needs a frame to ask for its tiles.
    if (this.isSourceLoaded(source.id)) changing.set(source, false);
    const isRead = () => {
      if (changing.has(source)) changing.set(source, true);
      this.triggerRepaint();
    };
    source.setData(data).then(isRead, isRead);
  }

  override triggerRepaint(): void {
    this.changing?.forEach((isRead, source, changing) => {
      if (this.getSource(source.id) !== source || (isRead && this.isSourceLoaded(source.id))) changing.delete(source);
    });
    if (!this.changing?.size || this.isMoving()) super.triggerRepaint();
  }
}

export class HexagonMap {
  readonly map: SteadyMap;
  private colours = mapColours();
  private readonly hexagons = new HexagonLayer(() => this.colours);
  private readonly lines = new LineLayer(() => this.colours);
  private readonly marked: Record<Mark, Geometry[]> = { area: [], alert: [], selection: [] };
  private spot: Marker | null = null;
  /** The marks that are on the map, as text: the same in another window cost no frame. */
  private outlined = '';
  /** What was asked of the map so far is done: a style that is being replaced has no sources to change. */
  private done: Promise<void> = Promise.resolve();
  private isDrawn = false;
  /** The layer under which the land lies, and that of names below all others. */
  private firstGround = '';
  private firstName: string | undefined;
  /** The graphics processor is there. While it is not, the map has no style. */
  private restored: Promise<unknown> = Promise.resolve();
  /** What is in the archive of streets; null where there is none, or where it could not be read yet. */
  private archive: Archive | null = null;
  private asked: Promise<Archive | null> | null = null;
  /** What is to be on the screen, and what tells whoever waited for what was there before. */
  private wanted: { looks: Look[]; colours: string[]; numberOf: NumberOf } = { looks: [], colours: [], numberOf: () => '' };
  private giveWay: () => void = () => undefined;
  /** The lines that the operator served; the roads of the archive that are on the screen join them. */
  private network: Line[] = [];
  private hasNewTiles = false;
  private heat: Heat | null = null;
  private hasNumbers = false;
  /** The map has a style, to which layers can be added. */
  private isStyled = false;
  private shown: Drawn;
  private readonly protocol = new Protocol();
  private readonly scale = new ScaleControl({ unit: SCALES[chosenUnit()], maxWidth: longest() });

  constructor(
    container: HTMLElement,
    private readonly settings: Settings,
    start: { center: [number, number]; zoom: number } | { bounds: Box },
    shown: Drawn,
  ) {
    this.shown = shown;
    this.setShown(shown);
    if (settings.network) lines().then((paths) => this.drawLines(network(paths)), (error: unknown) => console.warn('The lines cannot be drawn.', error));
    setWorkerUrl(new URL(workerAddress, import.meta.url).href);
    // Its worker starts meanwhile. Without a style it draws nothing: a frame of bare ground costs as much as one that is seen.
    prewarm();
    addProtocol('pmtiles', this.protocol.tile);
    const place = 'bounds' in start ? { bounds: start.bounds } : start;
    this.map = new SteadyMap({
      container,
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
    this.map.on('webglcontextlost', () => this.comeBack());
    this.map.on('moveend', () => this.writeNumbers());
    this.map.on('zoom', () => {
      if (this.isDrawn && this.map.getZoom() < LAND_UNTIL) void this.inTurn(() => this.addLand());
    });
    const { attribution } = settings;
    if (settings.basemap || attribution) {
      this.map.addControl(new AttributionControl({ compact: true, customAttribution: attribution ? withoutMarkup(attribution) : [] }), 'bottom-left');
    }
    if (settings.basemap) {
      this.asked = this.ask();
      this.map.on('sourcedata', ({ sourceId, tile }) => (this.hasNewTiles ||= sourceId === 'streets' && Boolean(tile)));
      this.map.on('idle', () => this.hasNewTiles && this.drawLines(this.network));
    }
  }

  /** Draw the operator's lines, and the roads that are loaded. */
  private drawLines(network: Line[]): void {
    this.network = network;
    const hasTiles = this.archive && this.map.getSource('streets');
    this.hasNewTiles &&= !hasTiles;
    this.lines.draw([...network, ...(hasTiles && this.shown.lines ? roads(this.map, this.archive!) : [])]);
    this.setShown(this.shown);
    this.writeNumbers();
    this.map.triggerRepaint();
  }

  /** Do it once everything asked before is done. */
  private inTurn(work: () => void | Promise<void>): Promise<void> {
    const mine = this.done.then(() => this.restored).then(work);
    this.done = mine.catch(() => undefined);
    return mine;
  }

  /** A graphics processor that was reset, or that slept, has lost everything. MapLibre builds the style anew, without layers of our own. */
  private comeBack(): void {
    this.isStyled = false;
    const isThere = new Promise((resolve) => this.map.once('webglcontextrestored', resolve));
    this.restored = isThere.then(() => (this.isDrawn ? this.draw() : undefined));
  }

  /** Read what is in the archive of streets. */
  private ask(): Promise<Archive | null> {
    const found = described(this.protocol, new URL('dashboard/basemap.pmtiles', document.baseURI).href);
    return found.catch((error: unknown) => (console.warn('The basemap cannot be drawn.', error), null));
  }

  /** Draw the ground, unless it is drawn: at once where there is no window yet, else with the first one. */
  begin(): void {
    void this.inTurn(() => (this.isDrawn ? undefined : this.draw()));
  }

  /** Draw in the present colours and letters, also while the server is away. An archive that could not be read is asked for again. */
  private async draw(): Promise<void> {
    if (this.settings.basemap) this.archive ??= await (this.asked ?? this.ask());
    this.asked = null;
    [this.isDrawn, this.isStyled] = [true, false];
    const { sources, under, over } = this.grounds();
    this.map.setStyle({ version: 8, sources, layers: [sea(this.colours), ...under, ...over] }, { diff: false, validate: false });
    await new Promise((resolve) => this.map.once('style.load', resolve));
    this.firstGround = under[0]?.id ?? this.hexagons.id;
    this.firstName = over.find((layer) => layer.type === 'symbol')?.id;
    // Before the first frame in this style.
    this.colour();
    this.map.addLayer(this.hexagons, over[0]?.id);
    this.map.addLayer(this.lines, over.find((layer) => layer.type !== 'line')?.id);
    this.isStyled = true;
    this.drawHeat();
    this.addMarks();
    this.writeNumbers();
    await this.addLand();
  }

  /** What is drawn under the hexagons and over them. Lines lie on them, thin and half transparent, and names on everything; areas under them. */
  private grounds(): { sources: Ground['sources']; under: LayerSpecification[]; over: LayerSpecification[] } {
    const { colours } = this;
    const below = this.archive ? streets(this.archive, colours, letters()) : NOTHING;
    const named = this.settings.street_names ? streetNames(colours, letters()) : NOTHING;
    const calls = this.settings.network ? stops(colours, this.lines.isShown) : NOTHING;
    return {
      sources: { ...below.sources, ...calls.sources, ...named.sources },
      under: below.layers.filter((layer) => layer.type === 'fill' || layer.type === 'raster'),
      over: [
        ...below.layers.filter((layer) => layer.type === 'line'),
        ...calls.layers,
        ...below.layers.filter((layer) => layer.type === 'symbol'),
        ...named.layers,
      ],
    };
  }

  private add({ sources, layers }: Ground, before: string | undefined): void {
    for (const [id, source] of Object.entries(sources)) this.map.addSource(id, source);
    for (const layer of layers) this.map.addLayer(layer, before);
  }

  /** Add the land, unless nothing of it is seen so close up: it has to be loaded, and every source costs frames until it is ready. */
  private async addLand(): Promise<void> {
    if (this.source('land') || this.map.getZoom() >= LAND_UNTIL) return;
    try {
      const { land } = await import('./land');
      this.add(land(this.colours, LAND_UNTIL), this.firstGround);
    } catch (error) {
      console.warn('The land cannot be drawn.', error);
    }
  }

  /** Add what is marked, under the names; nothing, where nothing is. */
  private addMarks(): void {
    const data = this.marks();
    this.outlined = JSON.stringify(data);
    if (!data.features.length) return;
    this.add({ sources: { marks: { type: 'geojson', data } }, layers: this.markLayers() }, this.firstName);
  }

  private markLayers(): LayerSpecification[] {
    const [{ colours }, wide] = [this, isLarge() ? 2 : 1];
    return [
      {
        id: 'area-fill',
        type: 'fill',
        source: 'marks',
        filter: ['all', of('area'), ['==', ['geometry-type'], 'Polygon']],
        paint: { 'fill-color': colours.selected, 'fill-opacity': 0.08 },
      },
      {
        id: 'area',
        type: 'line',
        source: 'marks',
        filter: of('area'),
        paint: { 'line-color': colours.selected, 'line-width': 2, 'line-dasharray': [3, 2] },
      },
      {
        id: 'area-corners',
        type: 'circle',
        source: 'marks',
        filter: ['all', of('area'), ['==', ['geometry-type'], 'Point']],
        paint: { 'circle-color': colours.selected, 'circle-radius': 4, 'circle-stroke-color': colours.land, 'circle-stroke-width': 2 },
      },
      ...outlines('alert', [[colours.land, 7 * wide], [colours.alert, 4 * wide]]),
      ...outlines('selection', [[colours.land, 6 * wide], [colours.selected, 2.5 * wide]]),
    ];
  }

  private marks(): FeatureCollection {
    const features = (Object.keys(this.marked) as Mark[]).flatMap((mark) =>
      this.marked[mark].map((geometry): Feature => ({ type: 'Feature', properties: { mark }, geometry })));
    return { type: 'FeatureCollection', features };
  }

  private remark(mark: Mark, geometries: Geometry[]): Promise<void> {
    this.marked[mark] = geometries;
    return this.inTurn(() => {
      const [source, data] = [this.source('marks'), this.marks()];
      if (!source) return this.isDrawn ? this.addMarks() : undefined;
      const outlined = JSON.stringify(data);
      if (outlined !== this.outlined) this.map.change(source, data);
      this.outlined = outlined;
    });
  }

  /**
   * Draw a window. True once it is on the screen; false as soon as another takes its place: nothing is drawn on a screen that
   * is locked, and what waits for that must not hold every window that comes meanwhile.
   */
  show(looks: Look[], colours: string[], numberOf: NumberOf): Promise<boolean> {
    this.wanted = { looks, colours, numberOf };
    this.giveWay();
    return new Promise((resolve, reject) => {
      this.giveWay = () => resolve(false);
      this.inTurn(() => (this.isDrawn ? this.colour() : this.draw())).then(() => this.map.once('idle', () => resolve(true)).triggerRepaint(), reject);
    });
  }

  /** Give the cells the looks that are wanted now. */
  private colour(): void {
    const { looks, colours } = this.wanted;
    this.hexagons.show(looks, colours);
    this.lines.show(looks, colours);
    this.writeNumbers();
  }

  /** Write the numbers of the cells in sight on them; none where cells are small. */
  private writeNumbers(): void {
    if (!this.isStyled) return;
    const { looks, numberOf } = this.wanted;
    const middles = () => (this.hexagons.isShown ? null : this.lines.middles());
    const data = numbersOf(this.heat ? [] : looks, numberOf, this.map.getZoom(), this.map.getBounds(), middles);
    const source = this.source(NUMBERS);
    if (source && (data.features.length || this.hasNumbers)) this.map.change(source, data);
    else if (!source && data.features.length) {
      this.map.addSource(NUMBERS, { type: 'geojson', data });
      this.map.addLayer(numbersLayer(this.colours, letters() + 1));
    }
    this.hasNumbers = data.features.length > 0;
  }

  /** There is none before the first drawing, which begins with all that was asked for until then. */
  private source(name: string): GeoJSONSource | undefined {
    return this.map.getSource(name) as GeoJSONSource | undefined;
  }

  /** Outline a cell, or none. */
  select = (hexagon: Shape | null): Promise<void> => this.remark('selection', hexagon ? [shapeOf(hexagon)] : []);

  /** Outline an area, with its corners where there are points, or none. */
  outline = (area: Geometry | null): Promise<void> => this.remark('area', area ? [area] : []);

  /** Outline the cells that rules name. */
  alert = (cells: Shape[]): Promise<void> => this.remark('alert', cells.map(shapeOf));

  /** Mark a place with its name, or none. */
  mark(spot: Spot | null): void {
    this.spot?.remove();
    if (!spot) return void (this.spot = null);
    const element = make('div', { class: 'spot', role: 'img', 'aria-label': spot.name }, make('bdi', {}, spot.name));
    this.spot = new Marker({ element }).setLngLat(spot.at).addTo(this.map);
  }

  /** Show a histogram in place of the speeds, or these again. */
  async setHeat(heat: Heat | null): Promise<void> {
    if (heat === this.heat) return;
    this.heat = heat;
    await this.inTurn(() => {
      this.drawHeat();
      this.drawLines(this.network);
    });
  }

  private drawHeat(): void {
    if (!this.isStyled) return;
    if (this.map.getLayer(HEAT)) this.map.removeLayer(HEAT).removeSource(HEAT);
    if (this.heat) this.add({ sources: { [HEAT]: { type: 'geojson', data: this.heat } }, layers: [heatLayer(this.heat)] }, this.hexagons.id);
  }

  /** Show lines with their stops, hexagons, or both. */
  async setLines(shown: Drawn): Promise<void> {
    this.shown = shown;
    this.drawLines(this.network);
    await this.inTurn(() => {
      if (this.isDrawn && this.settings.network) this.map.setLayoutProperty(STOPS, 'visibility', shown.lines ? 'visible' : 'none');
      this.map.triggerRepaint();
    });
  }

  /** Hexagons stand in where roads alone were to carry the colours and none are loaded, as far out. */
  private setShown({ lines, hexagons }: Drawn): void {
    if (this.heat) return void ([this.lines.isShown, this.hexagons.isShown] = [false, false]);
    [this.lines.isShown, this.hexagons.isShown] = [lines, hexagons || !lines || (!this.settings.network && this.lines.isEmpty)];
  }

  /** Show distances in the unit of speeds. */
  setUnit(): void {
    this.scale.setUnit(SCALES[chosenUnit()]);
  }

  /** Redraw in another theme, or with letters of another size. */
  async setTheme(): Promise<void> {
    this.colours = mapColours();
    this.scale.options.maxWidth = longest();
    this.setUnit();
    await this.inTurn(() => this.draw());
    await new Promise((resolve) => this.map.once('idle', resolve));
  }
}
