/** The dashboard: puts view, map and controls together. */

import 'maplibre-gl/dist/maplibre-gl.css';
import 'uplot/dist/uPlot.min.css';
import './style.css';
import * as api from './api';
import { setUpAbout } from './about';
import { setUpCity } from './city';
import { showAlerts } from './alerts';
import { setUpControls, showControls } from './controls';
import { cellCard, statement } from './details';
import { byId, cellName, make } from './dom';
import { setUpDownloads, showDownloads } from './downloads';
import { boundsOf, boxOf, boxShape, centre } from './hexagons';
import { setUpLanguage } from './language';
import { isLarge, setUpLarge } from './large';
import { HexagonMap } from './map';
import { Drawing, areaCard } from './measure';
import { namedCard } from './named';
import { Names } from './names';
import { parsePlace, placeText } from './place';
import { setUpShortcuts } from './shortcuts';
import { Table } from './table';
import { fillPage, say, type Values } from './texts';
import { setUpTheme } from './theme';
import { freshness, setUpTimeline, showBadge, showTimeline } from './timeline';
import { choose as chooseUnit } from './units';
import { clock, day, when } from './times';
import type { AlertList, Box, PlaceList, WindowCells, WindowSummary } from './types';
import { View } from './view';

const REMEMBERED = 12;

fillPage();
const root = document.documentElement;
const view = new View();
const place = parsePlace(location.hash + location.search.replace('?', '&'));
if (place.statistic) view.statistic = place.statistic;
if (place.values) view.kind = place.values;
view.chosenScheme = place.colours ?? null;
view.selected = place.cell ?? null;
view.box = place.cell ? null : (place.area ?? null);
view.named = place.cell ? null : (place.named ?? null);
view.live = !place.window;

let map: HexagonMap;
let drawing: Drawing;
let linked = true;
let arrived: number | null = null;
let turn = 0;
let painted = 0;
let placed = Boolean(place.at);
const remembered = new Map<string, Promise<WindowCells>>();

const theme = setUpTheme((chosen) => {
  view.theme = chosen;
  void map.setTheme(chosen).then(paint);
});
view.theme = theme;
setUpLanguage();
setUpLarge(place.large === 'on', () => writePlace());

async function start(): Promise<void> {
  const settings = await api.settings();
  view.feed = settings.feed;
  view.limits = settings.limits;
  view.parquet = settings.parquet;
  view.alerting = settings.alerting;
  view.setLines(settings, place.lines);
  const { at } = place;
  map = new HexagonMap(byId('map'), settings, theme, at ? { center: [at.lng, at.lat], zoom: at.zoom } : { bounds: settings.domain }, view.lined);
  drawing = new Drawing(map, (box) => {
    byId('box-button').setAttribute('aria-pressed', 'false');
    if (box) measure(box);
  });
  map.map.on('moveend', () => writePlace());
  map.map.on('mousemove', ({ point, lngLat }) => hover(point.x, point.y, view.at(lngLat.lng, lngLat.lat)?.cell));
  map.map.on('mouseout', () => hover(0, 0, undefined));
  map.map.on('click', ({ lngLat }) => choose(view.at(lngLat.lng, lngLat.lat)?.cell ?? null));
  setUpTimeline(view, { to, live });
  setUpControls({
    statistic: (statistic) => change(() => (view.statistic = statistic)),
    scheme: (scheme) => change(() => (view.chosenScheme = scheme)),
    kind: (kind) => change(() => (view.kind = kind)),
    unit: (unit) =>
      change(() => {
        chooseUnit(unit);
        map.setUnit();
      }),
  });
  setUpAbout(view);
  setUpDownloads(view);
  setUpShortcuts(map.map.getCanvas(), {
    earlier: () => to(view.index - 1),
    later: () => to(view.index + 1),
    live: () => live(!view.live),
    statistic: (index) => {
      const statistic = view.statistics()[index];
      if (statistic) change(() => (view.statistic = statistic));
    },
    centre: () => {
      const middle = map.map.getCenter();
      choose(view.at(middle.lng, middle.lat)?.cell ?? null);
    },
    press: (button) => byId(button).click(),
  });
  byId('newest').addEventListener('click', () => live(true));
  byId('details-close').addEventListener('click', () => closeDetails());
  byId('box-button').addEventListener('click', () => (drawing.active ? drawing.end(null) : drawArea()));
  addEventListener('hashchange', () => location.reload());
  // What WebGL drew is gone unless it is drawn just before.
  addEventListener('beforeprint', () => map.map.redraw());
  if (view.box) setBox(view.box);
  setUpCity(view, settings, () => change(() => void map.setLines(view.lined)), { cell: (cell) => chooseAndShow(view.covering(cell)), area: openNamed });
  if (settings.places) void api.places().then(name, () => undefined);
  await refresh();
  const known = Math.max(0, ...view.windows.map((window) => window.event_id ?? 0));
  api.follow(view.feed, known, onWindow, onLink);
  setInterval(tell, 5_000);
}

/** Call cells by their places from now on. Without the list they keep their indexes. */
function name(list: PlaceList): void {
  view.names = new Names(list);
  if (view.window) void paint();
}

/** Ask for the windows there are, and show the one asked for or the newest. */
async function refresh(): Promise<void> {
  await api.caughtUp(() => showBadge({ state: 'waiting', text: say('badge.reading') }));
  view.windows = (await api.windows(view.feed)).filter((window) => window.complete).reverse();
  const asked = view.window?.window.start ?? place.window;
  const wanted = view.live ? undefined : view.windows.find((window) => window.window.start === asked);
  if (!view.live && !wanted && asked && view.windows.length) return showGone(asked);
  view.live = !wanted;
  await show(wanted ?? view.windows.at(-1));
}

function onWindow(window: WindowSummary): void {
  arrived = Date.now();
  view.windows = [...view.windows.filter((other) => other.window.start !== window.window.start), window].sort((a, b) =>
    a.window.start < b.window.start ? -1 : 1,
  );
  if (view.live) show(view.windows.at(-1)).catch(fail);
  else showTimeline(view);
  tell();
}

function onLink(up: boolean): void {
  const back = up && !linked;
  linked = up;
  tell();
  if (back) void refresh().catch(fail);
}

const load = (window: WindowSummary): Promise<WindowCells> => {
  const key = window.window.start;
  const found = remembered.get(key) ?? api.cells(view.feed, key);
  remembered.delete(key);
  remembered.set(key, found);
  found.catch(() => remembered.delete(key));
  for (const old of [...remembered.keys()].slice(0, -REMEMBERED)) remembered.delete(old);
  return found;
};

async function show(window: WindowSummary | undefined): Promise<void> {
  const mine = (turn += 1);
  if (!window) {
    showCard('empty');
    return tell(ready);
  }
  byId('notice').hidden = true;
  if (window.window.start === view.window?.window.start) return void tell(ready);
  performance.mark('asked');
  const [cells, usual, alerts] = await Promise.all([load(window), api.usual(window.window.start), alertsOf(window)]);
  if (mine !== turn) return;
  performance.measure('hexveil:fetch', 'asked');
  view.setWindow(cells, usual);
  view.alerts = alerts;
  if (cells.marker?.withheld) showCard('withheld');
  else byId('empty').hidden = true;
  if (!placed) fit();
  await paint();
  performance.measure('hexveil:update', 'asked');
}

/** What the rules say of a window; null where there are none, or where the server does not tell. */
async function alertsOf(window: WindowSummary): Promise<AlertList | null> {
  if (!view.alerting) return null;
  return api.alerts(view.feed, window.window.start).catch((error: unknown) => {
    view.alertsFailed = error instanceof api.ApiError ? error.message : say('failed.server');
    return null;
  });
}

/** The card in the middle of the map: why there is nothing on it. */
function showCard(subject: 'empty' | 'gone' | 'withheld', values: Values = {}): void {
  byId('empty').hidden = false;
  byId('empty-title').textContent = say(`${subject}.title`);
  byId('empty-text').textContent = say(`${subject}.text`, values);
  byId('newest').hidden = subject !== 'gone';
}

/** The window that the address names is not kept: say so, and show no other in its place. */
async function showGone(start: string): Promise<void> {
  turn += 1;
  view.clear();
  const at = (time: string) => `${day(time, view.zone)}, ${clock(time, view.zone)} (${view.zone})`;
  showCard('gone', { window: at(start), first: at(view.windows[0]!.window.start), last: at(view.windows.at(-1)!.window.end) });
  await paint();
}

function fit(): void {
  const box = boundsOf([...view.cells.keys()]);
  if (!box) return;
  placed = true;
  const narrow = innerWidth < 720;
  const [left, right] = getComputedStyle(root).direction === 'rtl' ? [60, 310] : [310, 60];
  const padding = narrow ? 20 : { left, right, top: 30, bottom: 30 };
  map.map.fitBounds(box, { padding, animate: false, maxZoom: 13 });
}

/** Everything that depends on window or choices. */
async function paint(): Promise<void> {
  const looks = view.looks();
  showControls(view, looks);
  showTimeline(view);
  showDownloads(view);
  showAlerts(view, chooseAndShow);
  showDetails();
  table.render();
  hover(0, 0, undefined);
  tell();
  writePlace();
  void map.alert(view.alertingCells());
  await map.show(looks, view.colours);
  announce();
  ready();
}

/** For whoever waits from outside: what is on the screen now. */
function ready(): void {
  painted += 1;
  root.dataset.window = view.window?.window.start ?? '';
  root.dataset.painted = String(painted);
  root.dataset.ready = 'true';
}

function change(apply: () => void): void {
  performance.mark('changed');
  apply();
  void paint().then(() => performance.measure('hexveil:change', 'changed'));
}

function to(index: number): void {
  const wanted = view.windows[index];
  if (!wanted) return;
  view.live = false;
  show(wanted).catch(fail);
}

function live(on: boolean): void {
  view.live = on;
  if (on) show(view.windows.at(-1)).catch(fail);
  showTimeline(view);
  writePlace();
}

/** Choose a cell and move the map to it. */
function chooseAndShow(cell: string): void {
  choose(cell);
  const [lng, lat] = centre(cell);
  map.map.easeTo({ center: [lng, lat], zoom: Math.max(map.map.getZoom(), 10.5), animate: !matchMedia('(prefers-reduced-motion: reduce)').matches });
}

const table = new Table(view, chooseAndShow);

function choose(cell: string | null): void {
  view.selected = cell;
  byId('tooltip').hidden = true;
  if (cell) setBox(null);
  showDetails();
  table.render();
  writePlace();
}

function setBox(box: Box | null): void {
  view.box = box;
  view.named = null;
  void map.outline(box && boxShape(box));
}

/** Open a named area and, the first time, move the map to it. */
function openNamed(name: string): void {
  if (drawing.active) drawing.end(null);
  view.selected = null;
  setBox(null);
  view.named = name;
  showNamed(name, true);
  void map.select(null);
  table.render();
  writePlace();
}

function showNamed(name: string, move: boolean): void {
  byId('details').hidden = false;
  const card = namedCard(view, name, ({ geometry }) => {
    void map.outline(geometry);
    if (move && geometry.coordinates.length) map.map.fitBounds(boxOf(geometry), { padding: 60, animate: false, maxZoom: 14 });
    byId('status').textContent = byId('area-mean')?.firstChild?.textContent ?? say('area.none');
  });
  byId('details-body').replaceChildren(...card);
}

function drawArea(): void {
  view.selected = null;
  byId('box-button').setAttribute('aria-pressed', 'true');
  drawing.begin();
  setBox(null);
  showArea();
}

function measure(box: Box): void {
  if (drawing.active) drawing.end(null);
  view.selected = null;
  setBox(box);
  writePlace();
  showDetails();
  byId('status').textContent = byId('area-mean')?.firstChild?.textContent ?? say('area.nothing');
}

function showArea(): void {
  const bounds = map.map.getBounds();
  const [middle, wide, high] = [bounds.getCenter(), (bounds.getEast() - bounds.getWest()) / 4, (bounds.getNorth() - bounds.getSouth()) / 4];
  const suggestion: Box = [middle.lng - wide, middle.lat - high, middle.lng + wide, middle.lat + high];
  byId('details').hidden = false;
  byId('details-body').replaceChildren(...areaCard(view, suggestion, measure));
}

function showDetails(): void {
  const { selected, box, named } = view;
  void map.select(selected ? (view.cells.get(selected) ?? { cell: selected }) : null);
  byId('details').hidden = !selected && !box && !named && !drawing.active;
  if (selected) byId('details-body').replaceChildren(...cellCard(view, selected));
  else if (named) showNamed(named, false);
  else if (box || drawing.active) showArea();
}

function closeDetails(): void {
  if (drawing.active) drawing.end(null);
  setBox(null);
  choose(null);
  map.map.getCanvas().focus();
}

function hover(x: number, y: number, cell: string | undefined): void {
  const tip = byId('tooltip');
  tip.hidden = !cell || cell === view.selected || drawing.active;
  if (!cell || tip.hidden) return;
  if (tip.dataset.cell !== cell + painted) tip.replaceChildren(...(view.names?.of(cell) ? [make('p', { class: 'title' }, ...cellName(view, cell))] : []), ...statement(view, cell));
  tip.dataset.cell = cell + painted;
  const frame = byId('map').getBoundingClientRect();
  const left = Math.min(x + 16, frame.width - tip.offsetWidth - 8);
  const top = y + 18 + tip.offsetHeight > frame.height ? y - tip.offsetHeight - 12 : y + 18;
  tip.style.transform = `translate(${Math.max(left, 8)}px, ${Math.max(top, 8)}px)`;
}

function announce(): void {
  if (!view.window) return;
  const published = [...view.cells.values()].filter((cell) => cell.status === 'published').length;
  const alerts = view.alerts?.alerts.length ?? 0;
  const said = say('status.window', { window: when(view.window.window, view.zone), cells: view.cells.size, published });
  byId('status').textContent = alerts ? `${said} ${say('status.alerts', { count: alerts })}` : said;
}

function tell(then?: () => void): void {
  showBadge(freshness(view, linked, arrived, Date.now()));
  showTimeline(view);
  then?.();
}

function writePlace(): void {
  if (!view.window) return;
  const middle = map.map.getCenter();
  const text = placeText({
    at: { lat: middle.lat, lng: middle.lng, zoom: map.map.getZoom() },
    window: view.live ? undefined : view.window.window.start,
    statistic: view.statistic,
    colours: view.chosenScheme ?? undefined,
    values: view.kind === 'raw' ? 'raw' : undefined,
    cell: view.selected ?? undefined,
    area: view.box ?? undefined,
    named: view.named ?? undefined,
    lines: view.lined === view.linedAtFirst ? undefined : view.lined ? 'on' : 'off',
    large: isLarge() ? 'on' : undefined,
  });
  history.replaceState(null, '', location.pathname + text);
}

/** A window that cannot be shown: say so, and keep what is on the screen. */
function fail(error: unknown): void {
  const notice = byId('notice');
  notice.hidden = false;
  notice.textContent = say('failed.window', { reason: error instanceof api.ApiError ? error.message : say('failed.server') });
  showTimeline(view);
}

start().catch((error: unknown) => {
  byId('empty').hidden = false;
  byId('empty-title').textContent = say('failed.title');
  byId('empty-text').textContent = say('failed.text', { reason: error instanceof Error ? error.message : String(error) });
  root.dataset.ready = 'failed';
});
