/** What is on display: the window, its cells, what is typical there, and what the reader chose. */

import * as api from './api';
import type { Area } from './area';
import { cellAt, centre, finestOf, type Shape } from './hexagons';
import type { Names } from './names';
import { overSaid } from './over';
import { decimals, say } from './texts';
import { inUnit, measure, otherValue } from './units';
import { clock, day, localClock, when } from './times';
import { RD_YL_BU, WITHIN_NOISE, viridis, type Theme } from './palette';
import {
  COMPARING,
  RELATIVE_BREAKS,
  STATISTICS,
  absoluteBreaks,
  classify,
  fromTypical,
  isNobody,
  opacity,
  shown,
  typicalOf,
  type Kind,
  type Scheme,
  type Shown,
  type Statistic,
  type Verdict,
  type Versus,
} from './statistics';
import type { Drawn, HeatFeatures as Heat, Hexagon, Marker, Missing, OtherDay, Over, Scheduled, Settings, WindowCells, WindowSummary } from './types';
import type { Look } from './hexagonlayer';

export interface Reading {
  hexagon: Hexagon;
  now: Shown | null;
  typical: Shown | null;
  /** The value of the other day, where that is what the map compares with, or why there is none: also for want of a window. */
  then: Shown | Missing | 'window' | null;
  scheme: Scheme;
  /** How it differs from what the chosen colours compare it with: the estimate from what is typical, else what was released; null
   * where there is no such thing. */
  verdict: Verdict | null;
}

/** What a window is shown with: another day, the timetable, alerts and a histogram, each null where it is not wanted or cannot be read. `refused`: why alerts cannot be read. */
type Beside = Awaited<ReturnType<View['readBeside']>>;

const NOTHING: Beside = { other: null, scheduled: null, alerts: null, refused: '', heat: null, failures: [] };

export class View {
  feed = '';
  settings: Settings | null = null;
  theme: Theme = 'light';
  /** Complete windows of the feed, oldest first. */
  windows: WindowSummary[] = [];
  /** The window on display. */
  window: WindowCells | null = null;
  live = true;
  /** The windows that are played begin at `from` or later and before `to`; all, where neither is given. */
  range: { from?: string; to?: string } = {};
  statistic: Statistic = 'mean';
  kind: Kind = 'estimate';
  /** Chosen by the reader; until then, what the operator's map is for. */
  chosenScheme: Scheme | null = null;
  /** The local date to compare with; null for a week before, or else the day before. */
  day: string | null = null;
  /** What the window on display is shown with. */
  beside = NOTHING;
  /** The range whose mean is on display in place of a window, and of how many windows it is. */
  over: Over | null = null;
  overWindows = 0;
  selected: string | null = null;
  area: Area | null = null;
  /** Names of cells; null where the server has none. */
  names: Names | null = null;
  /** What carries the colours: lines where there are any, unless the reader chooses. */
  drawn: Drawn = { lines: false, hexagons: true, heat: false };
  cells = new Map<string, Hexagon>();
  /** Where each cell stands in the columns of the other day, and its scheduled speed. */
  private rows = new Map<string, number>();
  private scheduled = new Map<string, Scheduled>();
  private resolutions: number[] = [];
  /** Of which statistics any cell of the window has what: asked for every cell. */
  private has = contentsOf([]);

  /** Lines carry the colours where there are any, unless the address says otherwise. */
  begin(settings: Settings, place: { lines?: 'on' | 'off'; hexagons?: 'on'; heat?: 'on' }): void {
    const { lines } = (this.settings = settings);
    this.drawn = { lines: lines && place.lines !== 'off', hexagons: !lines || place.hexagons === 'on', heat: place.heat === 'on' };
  }

  /** What the server's configuration says of the feed; nothing of another one. */
  get own(): Partial<Settings> {
    return this.settings?.feed === this.feed ? this.settings : {};
  }

  get opens(): 'now' | 'typical' {
    return this.own.map === 'typical' ? 'typical' : 'now';
  }

  setWindow(window: WindowCells, beside: Beside = NOTHING): void {
    this.window = window;
    this.setBeside(beside);
    const marker = window.marker;
    measure(marker?.value && marker.value !== 'speed' ? { name: marker.value, ...marker.clipping } : null);
    this.cells = new Map(window.hexagons.map((hexagon) => [hexagon.cell, hexagon]));
    this.has = contentsOf(window.hexagons);
    const finest = finestOf(window.hexagons);
    for (const hexagon of window.hexagons) if (hexagon.resolution < finest) hexagon.finest = finest;
    this.resolutions = [...new Set([finest, ...window.hexagons.map((hexagon) => hexagon.resolution)])].sort((a, b) => b - a);
    if (!this.available(this.statistic)) this.statistic = this.statistics()[0] ?? 'mean';
  }

  /** Read what the window is to be shown with. What cannot be read is left out, and why is told. */
  async readBeside({ window: { start }, histograms }: WindowSummary) {
    const [failures, mechanism]: [string[], string | undefined] = [[], histograms[0]];
    let refused = '';
    const read = <Read>(isWanted: boolean | undefined, ask: () => Promise<Read>, failed: (reason: string) => unknown): Promise<Read | null> =>
      isWanted ? ask().catch((error: unknown) => (failed(api.reasonOf(error)), null)) : Promise.resolve(null);
    const [other, scheduled, alerts, heat] = await Promise.all([
      read(this.chosenScheme === 'day' && this.statistic !== 'spread', () => api.otherDay(this.feed, start, STATISTICS[this.statistic], this.day),
        (reason) => failures.push(say('day.failed', { reason }))),
      read(this.own.scheduled, () => api.scheduled(this.feed, start), (reason) => failures.push(say('scheduled.failed', { reason }))),
      read(this.own.alerting, () => api.alerts(this.feed, start), (reason) => (refused = reason)),
      read(this.drawn.heat && mechanism !== undefined, () => api.heat(this.feed, start, mechanism!), (reason) => failures.push(reason)),
    ]);
    return { other, scheduled, alerts, refused, heat, failures };
  }

  setBeside(beside: Beside): void {
    this.beside = beside;
    this.rows = new Map(beside.other?.cells?.cell.map((cell, row) => [cell, row]));
    this.scheduled = new Map(beside.scheduled?.map((one) => [one.cell, one]));
  }

  /** The window of another day beside the one on display, or why there is none. */
  get otherDay(): OtherDay | null {
    return this.beside.other;
  }

  /** The histogram that is drawn in place of speeds. */
  get heat(): Heat | null {
    return this.drawn.heat ? this.beside.heat : null;
  }

  scheduledIn = (cell: string): number | undefined => this.scheduled.get(cell)?.value;

  /** Whether what was read of the other day is of another statistic than the one on display. */
  get isOtherStatistic(): boolean {
    return this.otherDay !== null && this.otherDay.statistic !== STATISTICS[this.statistic];
  }

  /** Whether the reader wants to see another day that was not there when it was asked for. */
  get lacksOtherDay(): boolean {
    return this.chosenScheme === 'day' && this.window !== null && !this.otherDay?.other && this.otherDay?.reason !== 'same';
  }

  /** Whether a window begins at the same local time as the one on display, so that it may be what stands beside it. */
  mayStandBeside({ window }: WindowSummary): boolean {
    return this.window !== null && localClock(window.start, this.zone) === localClock(this.window.window.start, this.zone);
  }

  /** Show no window: the one that was asked for is not kept. */
  clear(): void {
    this.window = null;
    this.cells.clear();
    this.setBeside(NOTHING);
  }

  /** The time on display, "Tue, 14 Mar 2017, 07:00–08:00", or which windows are put together. */
  get said(): string {
    if (!this.window) return '';
    return this.over ? overSaid(this.over, this.overWindows, this.zone) : when(this.window.window, this.zone);
  }

  get relation(): Marker['relation'] {
    return this.window?.marker?.relation ?? 'values';
  }

  /** The feed's zone, by the window on display or the newest. */
  get zone(): string {
    return (this.window ?? this.windows.at(-1))?.marker?.period.timezone ?? 'UTC';
  }

  get upper(): number {
    return this.window?.marker?.clipping.upper ?? 100;
  }

  /** Windows of the range. */
  played(): WindowSummary[] {
    const { from = '', to } = this.range;
    return this.windows.filter(({ window }) => window.start >= from && (to === undefined || window.start < to));
  }

  get index(): number {
    return this.over ? -1 : this.windows.findIndex((window) => window.window.start === this.window?.window.start);
  }

  /** Whether the statistic was released, or is modelled by others that were. */
  available(statistic: Statistic): boolean {
    return this.window?.marker?.statistics.includes(STATISTICS[statistic]) || this.isModelled(statistic);
  }

  private isModelled = (statistic: Statistic) => this.has.modelled.has(STATISTICS[statistic]);

  statistics(): Statistic[] {
    return (Object.keys(STATISTICS) as Statistic[]).filter((statistic) => this.available(statistic));
  }

  /** Whether a model's numbers lead in the window. */
  get modelled(): boolean {
    return this.isModelled(this.statistic);
  }

  /** Whether the window holds modelled values of the statistic, and none as released. */
  get modelledAlone(): boolean {
    return this.modelled && !this.has.released.has(STATISTICS[this.statistic]);
  }

  /** Whether what is shown has no intervals. */
  get unbounded(): boolean {
    return this.shownKind === 'estimate' && this.has.unbounded.has(STATISTICS[this.statistic]);
  }

  /** How the numbers that are shown are marked. */
  get mark(): 'modelled' | 'raw' {
    return this.modelled && this.shownKind === 'estimate' ? 'modelled' : 'raw';
  }

  /** What numbers are shown of the chosen kind. */
  get shownKind(): Kind {
    return this.modelledAlone ? 'estimate' : this.kind;
  }

  /** Mechanisms of the window's spatial histograms. */
  get histograms(): string[] {
    return this.window?.histograms ?? [];
  }

  /** Whether the colours of a scheme can be had of the window. A timetable has means only; with other days released values are compared, as shares, so none that may be negative. */
  offers(scheme: Scheme): boolean {
    if (scheme === 'now' || this.over) return scheme === 'now';
    if (scheme === 'day') return !this.modelledAlone && this.statistic !== 'spread' && (otherValue()?.lower ?? 0) >= 0;
    return this.statistic === 'mean' && (scheme === 'scheduled' ? Boolean(this.own.scheduled) && !otherValue() : this.has.typical);
  }

  get scheme(): Scheme {
    const chosen = this.chosenScheme ?? this.opens;
    if (!this.offers(chosen)) return 'now';
    return (chosen === 'day' && (!this.otherDay || this.isOtherStatistic)) || (chosen === 'scheduled' && !this.beside.scheduled) ? 'now' : chosen;
  }

  /** What a difference is from: what was chosen, or else the first that there is. */
  get comparison(): Scheme {
    return [this.chosenScheme, ...COMPARING].find((one) => one && COMPARING.includes(one) && this.offers(one)) ?? 'now';
  }

  /** Whether colours say how the window differs from something. */
  get compares(): boolean {
    return COMPARING.includes(this.scheme);
  }

  get breaks(): number[] {
    return this.compares ? RELATIVE_BREAKS : absoluteBreaks(this.statistic, this.upper);
  }

  get colours(): string[] {
    return this.compares ? [...RD_YL_BU, WITHIN_NOISE[this.theme]] : viridis(this.breaks.length + 1, this.theme);
  }

  /** What is written on a cell: the number that is shown, or by how much it differs where noise does not explain that. */
  numberOf(hexagon: Hexagon): string {
    const { now, verdict, scheme } = this.read(hexagon);
    if (scheme === 'now' || scheme === 'typical') return now ? `${now.atBound ? '≥ ' : ''}${decimals(inUnit(now.value), 0)}` : '';
    if (!verdict?.clear) return '';
    const percent = Math.round(100 * (verdict.now.value / verdict.reference - 1));
    return `${percent > 0 ? '+' : '−'}${Math.abs(percent)} %`;
  }

  read(hexagon: Hexagon): Reading {
    const { scheme } = this;
    const typical = typicalOf(hexagon, this.statistic);
    const now = scheme === 'typical' ? typical : shown(hexagon, this.statistic, this.shownKind);
    if (scheme !== 'day' && scheme !== 'scheduled') {
      const estimate = typical && shown(hexagon, this.statistic, 'estimate');
      return { hexagon, now, typical, then: null, scheme, verdict: estimate && fromTypical(hexagon, estimate, typical) };
    }
    const released = shown(hexagon, this.statistic, 'raw');
    const beside = released && (scheme === 'day' ? this.onDay(hexagon.cell, released) : { verdict: this.fromScheduled(hexagon.cell, released) });
    return { hexagon, now, typical, then: null, scheme, verdict: null, ...beside };
  }

  private onDay(cell: string, now: Shown): Pick<Reading, 'then' | 'verdict'> {
    const [beside, row] = [this.otherDay!.cells, this.rows.get(cell)];
    if (!beside || row === undefined) return { then: 'window', verdict: null };
    const missing = beside.missing[row];
    if (missing) return { then: missing, verdict: null };
    const [value, low, high] = [beside.value[row]!, beside.low[row]!, beside.high[row]!];
    return { then: { value, low, high, atBound: beside.at_bound[row]! }, verdict: { now, reference: value, clear: beside.clear[row]!, error: beside.error[row]! } };
  }

  private fromScheduled(cell: string, now: Shown): Verdict | null {
    const scheduled = this.scheduled.get(cell);
    return scheduled && scheduled.error !== null ? { now, reference: scheduled.value, clear: scheduled.clear, error: scheduled.error } : null;
  }

  /** How many users a cell that was not published had on the other day, where that is public. */
  usersThen = (cell: string): number | null => this.otherDay?.cells?.users[this.rows.get(cell) ?? -1] ?? null;

  get versus(): Versus {
    if (this.scheme === 'scheduled') return { prefix: 'comparison.scheduled' };
    return this.scheme === 'day' ? { prefix: 'comparison.day', day: this.dayName } : { prefix: 'comparison' };
  }

  /** "Tue, 14 Mar 2017", where another day is what the map compares with. */
  get dayName(): string | undefined {
    return this.scheme === 'day' ? this.nameOf(this.otherDay!) : undefined;
  }

  private nameOf = ({ day: date, other }: OtherDay) => (other ? day(other.window.start, this.zone) : day(`${date}T12:00:00Z`, 'UTC'));

  /** "Compared with Tue, 14 Mar 2017, 07:00–08:00", or why there is nothing to compare with. */
  againstDay(): string {
    const { other, reason, oldest, newest } = this.otherDay!;
    if (other) return say('day.against', { window: when(other.window, this.zone) });
    const at = (time: string | null) => (time ? `${day(time, this.zone)}, ${clock(time, this.zone)}` : '–');
    const values = { day: this.nameOf(this.otherDay!), time: localClock(this.window!.window.start, this.zone), first: at(oldest), last: at(newest) };
    return reason ? say(`day.no.${reason}`, values) : '';
  }

  /** Cells that rules name, for their outlines. */
  alertingCells(): Shape[] {
    const named = [...new Set(this.beside.alerts?.alerts.map((alert) => alert.cell))];
    return named.map((cell) => this.cells.get(cell) ?? { cell });
  }

  /** The cell on display that covers a cell of any size, or the cell itself. */
  covering(cell: string): string {
    return this.cells.has(cell) ? cell : (this.at(...centre(cell))?.cell ?? cell);
  }

  at(lng: number, lat: number): Hexagon | undefined {
    return cellAt(this.cells, this.resolutions, lng, lat);
  }

  /** How the cells look. */
  looks(): Look[] {
    const { breaks, compares } = this;
    return [...this.cells.values()].map((hexagon): Look => {
      const { now, verdict } = this.read(hexagon);
      if (isNobody(hexagon)) return { hexagon, index: -1, opacity: 0, hatched: false };
      if (!now) return { hexagon, index: -1, opacity: 0, hatched: true };
      if (compares) return { hexagon, hatched: false, ...(verdict ? against(verdict) : { index: -1, opacity: 0.3 }) };
      const { index, spans } = classify(now, breaks, 1);
      return { hexagon, index, opacity: opacity(spans), hatched: false };
    });
  }
}

/** The statistics of which any cell has a leading number of a model, one without an interval, and a released value; and whether any has a typical mean. */
function contentsOf(hexagons: Hexagon[]): Record<'modelled' | 'unbounded' | 'released', Set<string>> & { typical: boolean } {
  const has = { modelled: new Set<string>(), unbounded: new Set<string>(), released: new Set<string>(), typical: false };
  for (const hexagon of hexagons) {
    for (const name of Object.values(STATISTICS)) if (hexagon[name]) has.released.add(name);
    has.typical ||= Boolean(hexagon.estimate?.typical);
    for (const [name, leading] of Object.entries(hexagon.estimate ?? {})) {
      if (leading.method !== 'released') has.modelled.add(name);
      if (!leading.interval) has.unbounded.add(name);
    }
  }
  return has;
}

/** Class and strength of a difference; a class of its own where noise explains it. */
function against({ now, reference, clear, error }: Verdict): { index: number; opacity: number } {
  if (!clear) return { index: RELATIVE_BREAKS.length + 1, opacity: opacity(1) };
  const { index, spans } = classify({ ...now, low: now.value - error, high: now.value + error }, RELATIVE_BREAKS, reference);
  return { index, opacity: opacity(spans) };
}
