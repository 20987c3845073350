/** The dashboard: puts view, map and controls together. */

import 'maplibre-gl/dist/maplibre-gl.css';
import 'uplot/dist/uPlot.min.css';
import './style.css';
import * as api from './api';
import { setUpAbout } from './about';
import { showAlerts } from './alerts';
import { setUpCity, setUpControls, showControls } from './controls';
import { byId } from './dom';
import { setUpDownloads, showDownloads } from './downloads';
import { isLarge, setUpFeeds, setUpLanguage, setUpLarge, setUpTheme, showFeeds } from './header';
import { HexagonMap } from './map';
import { mapless, type Mapped } from './mapless';
import { Names } from './names';
import { windowOf } from './over';
import { parsePlace, placeText } from './place';
import type { Page } from './page';
import { Player } from './play';
import { Selection } from './selection';
import { setUpShortcuts } from './shortcuts';
import { Table } from './table';
import { fillPage, say, type Values } from './texts';
import { freshness, joined, setUpTimeline, showBadge, showTimeline } from './timeline';
import { choose as chooseUnit } from './units';
import { clock, day, zoneName } from './times';
import type { Scheme, Statistic } from './statistics';
import type { Over, PlaceList, Settings, WindowCells, WindowSummary } from './types';
import { View } from './view';

const REMEMBERED = 12;
/** Milliseconds after which lists and clock are read anew: the server forgets its oldest windows, and clocks are set. */
const REREAD = 3_600_000;
/** Milliseconds after which a window that could not be read is asked for again, and after which a lost map is given up. */
const [RETRY, LOST] = [15_000, 15_000];

fillPage();
const root = document.documentElement;
const view = new View();
const place = parsePlace(location.hash + location.search.replace('?', '&'));
if (place.statistic) view.statistic = place.statistic;
if (place.values) view.kind = place.values;
view.day = place.day ?? null;
view.chosenScheme = place.colours ?? null;
view.selected = place.cell ?? null;
view.area = place.cell ? null : (place.area ?? null);
view.live = !place.window;
view.range = { from: place.from, to: place.to };
view.over = place.over ?? null;

let map: Mapped;
let selection: Selection;
let player: Player;
let linked = true;
/** The window that was asked for last could not be read. */
let unread = false;
let isKnown = true;
/** The page that the server had when this one was loaded. */
let build: string | null = null;
let arrived: number | null = null;
let turn = 0;
let asked: WindowSummary | null = null;
let painted = 0;
const remembered = new Map<string, Promise<WindowCells>>();

view.theme = setUpTheme((chosen) => {
  view.theme = chosen;
  void map.setTheme().then(paint);
});
setUpLanguage();
setUpLarge(place.large === 'on', () => {
  writePlace();
  void map.setTheme();
});

const page: Page = {
  to,
  live,
  statistic: chooseStatistic,
  scheme: compareWith,
  change,
  unit: (unit) =>
    change(() => {
      chooseUnit(unit);
      map.setUnit();
    }),
  // A histogram has to be read first.
  redraw: () => {
    const read = view.drawn.heat && !view.heat && asked ? show(asked, true) : Promise.resolve();
    read.then(() => change(() => void map.setLines(view.drawn))).catch(fail);
  },
  play,
  prepare: (window) => void load(window).catch(() => undefined),
  played,
  isPlaying: () => player.playing,
  mean: (over) => void showMean(over).catch(fail),
  open: (cell) => selection.open(cell),
  spot: (spot) => selection.find(spot),
  area: (name) => selection.areas.open({ kind: 'named', name }),
  areaChanged: () => selection.areaChanged(),
  centre: () => selection.centre(),
  selected: () => {
    table.render();
    writePlace();
  },
};

async function start(): Promise<void> {
  const settings = await api.settings();
  view.feed = place.feed ?? settings.feed;
  setUpFeeds(view);
  view.begin(settings, place);
  map = mapOf(settings);
  selection = new Selection(view, map, page, Boolean(place.at));
  watchGraphics();
  map.map.on('moveend', () => writePlace());
  setUpTimeline(view, page);
  player = new Player(view, page);
  setUpControls(view, page);
  setUpAbout(view);
  setUpDownloads(view);
  setUpShortcuts(map.map.getCanvas(), view, page);
  byId('newest').addEventListener('click', () => live(true));
  addEventListener('hashchange', () => location.reload());
  // What WebGL drew is gone unless it is drawn just before.
  addEventListener('beforeprint', () => map.map.redraw());
  setUpCity(view, settings, page);
  if (settings.places) void api.places().then(name, () => undefined);
  try {
    await refresh();
  } finally {
    map.begin();
  }
  const known = Math.max(0, ...view.windows.map((window) => window.event_id ?? 0));
  api.follow(view.feed, known, onWindow, onLink);
  setInterval(tell, 5_000);
  setInterval(() => void refreshed().catch(() => undefined), REREAD);
}

/** The map, or what stands in its place where the browser has no WebGL: then the table is open. */
function mapOf(settings: Settings): Mapped {
  const { at } = place;
  try {
    return new HexagonMap(byId('map'), settings, at ? { center: [at.lng, at.lat], zoom: at.zoom } : { bounds: settings.domain }, view.drawn);
  } catch (error) {
    console.warn('The map cannot be drawn.', error);
    table.show();
    return mapless(byId('map'), settings.domain);
  }
}

/** Say that the map is gone where the graphics processor does not come back. */
function watchGraphics(): void {
  map.map.on('webglcontextlost', () => {
    const timer = setTimeout(() => tellFailure(say('map.lost')), LOST);
    map.map.on('webglcontextrestored', () => clearTimeout(timer));
  });
}

/** Read anew what there is; the newest window is shown also where a dead connection told nothing of it. */
async function refreshed(): Promise<void> {
  await reread();
  if (view.live) await show(view.windows.at(-1));
  else tell();
}

/** Call cells by their places from now on. Without the list they keep their indexes. */
function name(list: PlaceList): void {
  view.names = new Names(list);
  if (view.window) void paint();
}

/** Ask for the feeds and windows there are, and show the window asked for or the newest. */
async function refresh(): Promise<void> {
  await api.caughtUp(() => {
    showBadge({ state: 'waiting', text: say('badge.reading') });
    map.begin();
  });
  await reread();
  if (view.over) return showMean(view.over);
  const asked = view.window?.window.start ?? place.window;
  const wanted = view.live ? undefined : view.windows.find((window) => window.window.start === asked);
  if (!view.live && !wanted && asked && view.windows.length) return showGone(asked);
  view.live = !wanted;
  await show(wanted ?? view.windows.at(-1), view.lacksOtherDay);
}

/** Ask for the feeds and windows that there are now. Windows that arrive meanwhile stay. */
async function reread(): Promise<void> {
  const before = new Set(view.windows);
  const [windows, settings] = await Promise.all([api.windows(view.feed), api.settings()]);
  build ??= settings.build;
  // The server was upgraded: parts of this page that were not loaded yet are gone. The address holds the view.
  if (settings.build !== build && !selection.areas.isDrawing) location.reload();
  isKnown = settings.feeds.includes(view.feed);
  showFeeds(view, settings.feeds);
  view.windows = joined(windows.filter((window) => window.complete), view.windows.filter((window) => !before.has(window)));
}

function onWindow(window: WindowSummary): void {
  arrived = api.now();
  view.windows = joined(view.windows, [window]);
  const again = view.lacksOtherDay && view.mayStandBeside(window);
  if (view.live) show(view.windows.at(-1), again).catch(fail);
  else if (again && asked) show(asked, true).catch(fail);
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

/** Compare with the same colours for every window that is shown; another day, or a timetable that failed, has to be read first. */
function compareWith(scheme: Scheme): void {
  const isRead = scheme === 'scheduled' ? view.beside.scheduled : scheme !== 'day';
  if (isRead || !asked) return change(() => (view.chosenScheme = scheme));
  view.chosenScheme = scheme;
  show(asked, true).catch(fail);
}

/** The other day's values of another statistic have to be read first. */
function chooseStatistic(statistic: Statistic): void {
  view.statistic = statistic;
  if (view.chosenScheme === 'day' && asked) show(asked, true).catch(fail);
  else change(() => undefined);
}

/** `again`: also where it is the one on display, because what it is compared with changed. */
async function show(window: WindowSummary | undefined, again = false): Promise<void> {
  const mine = (turn += 1);
  const wasMean = view.over !== null;
  view.over = null;
  asked = window ?? null;
  if (!window) {
    if (isKnown) showCard('empty');
    else showCard('unknown', { feed: view.feed });
    return tell(ready);
  }
  byId('notice').hidden = true;
  if (window.window.start === view.window?.window.start && !again && !wasMean) return void tell(ready);
  begin('asked');
  const [cells, beside] = await Promise.all([load(window), view.readBeside(window)]);
  if (mine !== turn) return;
  unread = false;
  took('fetch', 'asked');
  view.setWindow(cells, beside);
  if (view.isOtherStatistic) return show(window, true);
  if (cells.marker?.withheld) showCard('withheld');
  else byId('empty').hidden = true;
  if (beside.failures.length) tellFailure(beside.failures.join(' '));
  await paint();
  took('update', 'asked');
}

/** Show the mean over a range in place of a window. */
async function showMean(over: Over): Promise<void> {
  const mine = (turn += 1);
  player.stop();
  const found = await api.means(view.feed, over);
  const newest = view.windows.at(-1);
  if (mine !== turn || !newest) return;
  [view.over, view.overWindows, view.live, asked] = [over, found.windows, false, null];
  view.range = { from: over.from, to: over.to };
  view.setWindow(windowOf(found, over, newest));
  byId('empty').hidden = true;
  byId('notice').hidden = true;
  await paint();
}

/** The card in the middle of the map: why there is nothing on it. */
function showCard(subject: 'empty' | 'gone' | 'withheld' | 'unknown', values: Values = {}): void {
  byId('empty').hidden = false;
  byId('empty-title').textContent = say(`${subject}.title`);
  byId('empty-text').textContent = say(`${subject}.text`, values);
  byId('newest').hidden = subject !== 'gone';
}

/** The window that the address names is not kept: say so, and show no other in its place. */
async function showGone(start: string): Promise<void> {
  turn += 1;
  asked = null;
  view.clear();
  const at = (time: string) => `${day(time, view.zone)}, ${clock(time, view.zone)} (${zoneName(view.zone)})`;
  showCard('gone', { window: at(start), first: at(view.windows[0]!.window.start), last: at(view.windows.at(-1)!.window.end) });
  await paint();
}

/** Everything that depends on window or choices. */
async function paint(): Promise<void> {
  const looks = view.looks();
  showControls(view, looks);
  showTimeline(view);
  showDownloads(view);
  showAlerts(view, page.open);
  tell();
  selection.fit();
  selection.show();
  table.render();
  selection.hover();
  writePlace();
  void map.alert(view.alertingCells());
  void map.setHeat(view.heat);
  if (!(await map.show(looks, view.colours, (hexagon) => view.numberOf(hexagon)))) return;
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
  begin('changed');
  apply();
  void paint().then(() => took('change', 'changed'));
}

function to(index: number): void {
  const wanted = view.windows[index];
  if (!wanted) return;
  player.stop();
  view.live = false;
  show(wanted).catch(fail);
}

/** Show the next window that is played. */
async function play(window: WindowSummary): Promise<void> {
  view.live = false;
  await show(window).catch(fail);
}

/** Windows are played now, or no more, or others are. */
function played(): void {
  player.show();
  writePlace();
  if (!player.playing) announce();
}

function live(on: boolean): void {
  player.stop();
  view.live = on;
  if (on) show(view.windows.at(-1)).catch(fail);
  showTimeline(view);
  writePlace();
}

const table = new Table(view, (cell) => page.open(cell));

function announce(): void {
  if (!view.window || player.playing) return;
  const published = [...view.cells.values()].filter((cell) => cell.status === 'published').length;
  const alerts = view.beside.alerts?.alerts.length ?? 0;
  const said = say('status.window', { window: view.said, cells: view.cells.size, published });
  byId('status').textContent = [said, alerts && say('status.alerts', { count: alerts }), view.scheme === 'day' && view.againstDay()].filter(Boolean).join(' ');
}

function tell(then?: () => void): void {
  showBadge(freshness(view, { linked, unread }, arrived, api.now()));
  showTimeline(view);
  player.show();
  then?.();
}

function writePlace(): void {
  if (!view.window) return;
  const middle = map.map.getCenter();
  const text = placeText({
    at: { lat: middle.lat, lng: middle.lng, zoom: map.map.getZoom() },
    feed: place.feed,
    from: view.range.from,
    to: view.range.to,
    window: view.live || view.over ? undefined : view.window.window.start,
    over: view.over ?? undefined,
    statistic: view.statistic,
    colours: view.chosenScheme ?? undefined,
    day: (view.chosenScheme === 'day' && view.day) || undefined,
    values: view.kind === 'raw' ? 'raw' : undefined,
    cell: view.selected ?? undefined,
    area: view.area ?? undefined,
    lines: view.settings?.lines && !view.drawn.lines ? 'off' : undefined,
    hexagons: view.settings?.lines && view.drawn.hexagons ? 'on' : undefined,
    heat: view.drawn.heat ? 'on' : undefined,
    large: isLarge() ? 'on' : undefined,
  });
  history.replaceState(null, '', location.pathname + text);
}

/** A window that cannot be shown: say so, and keep what is on the screen. One that is not kept any more is gone. */
function fail(error: unknown): void {
  const gone = error instanceof api.ApiError && error.status === 404 && asked?.window.start;
  if (gone) void reread().then(() => (view.windows.length ? showGone(gone) : tellFailed(error))).catch(tellFailed);
  else tellFailed(error);
}

function tellFailed(error: unknown): void {
  tellFailure(say('failed.window', { reason: api.reasonOf(error) }));
  unread = true;
  tell();
  if (view.live) setTimeout(() => unread && view.live && show(view.windows.at(-1)).catch(fail), RETRY);
}

function tellFailure(text: string): void {
  const notice = byId('notice');
  notice.hidden = false;
  notice.textContent = text;
}

/** How long the page took, for measurements from outside. The newest of each kind alone is kept: a page stays open for days. */
function begin(mark: 'asked' | 'changed'): void {
  performance.clearMarks(mark);
  performance.mark(mark);
}

function took(what: 'fetch' | 'update' | 'change', since: 'asked' | 'changed'): void {
  performance.clearMeasures(`hexveil:${what}`);
  performance.measure(`hexveil:${what}`, since);
}

start().catch((error: unknown) => {
  byId('empty').hidden = false;
  byId('empty-title').textContent = say('failed.title');
  byId('empty-text').textContent = say('failed.text', { reason: error instanceof Error ? error.message : String(error) });
  root.dataset.ready = 'failed';
});
