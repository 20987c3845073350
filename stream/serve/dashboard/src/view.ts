/** What is on display: the window, its cells, what is usual there, and what the reader chose. */

import type { Area } from './area';
import { cellAt, centre, finestOf, overlapping, type Shape } from './hexagons';
import type { Heat } from './heat';
import type { Names } from './names';
import { overSaid, type Over } from './over';
import { decimals, say, type Values } from './texts';
import { inUnit, measure, otherValue } from './units';
import { clock, day, dayOfWeek, localClock, when, weekend } from './times';
import { NONE, judge, levelOf } from './significance';
import { RD_YL_BU, WITHIN_NOISE, viridis, type Theme } from './palette';
import {
  RELATIVE_BREAKS,
  STATISTICS,
  absoluteBreaks,
  classify,
  isNobody,
  opacity,
  shown,
  thenOf,
  scheduledOf,
  usualOf,
  type Kind,
  type Missing,
  type Reference,
  type Scheme,
  type Shown,
  type Statistic,
  type Verdict,
  type Versus,
} from './statistics';
import type { AlertList, Days, DerivedSpeeds, Hexagon, Limit, Marker, OtherDay, Settings, Usual, UsualCell, UsualValue, WindowCells, WindowSummary } from './types';
import type { Look } from './hexagonlayer';
import type { Shown as Drawn } from './map';

export interface Reading {
  hexagon: Hexagon;
  now: Shown | null;
  /** The value as released, with which everything is compared. */
  released: Shown | null;
  usual: UsualValue | null;
  /** The value of the other day, where that is what the map compares with, or why there is none: also for want of a window. */
  then: Shown | Missing | 'window' | null;
  /** The scheduled speed, where that is what the map compares with. */
  scheduled: Reference | null;
  scheme: Scheme;
  /** How it differs from what the chosen colours compare it with; null where there is no such thing. */
  verdict: Verdict | null;
}

/** What the chosen colours compare the value with; null where there is nothing. */
const referenceOf = ({ scheme, scheduled, usual, then }: Omit<Reading, 'verdict'>): Reference | null =>
  scheme === 'scheduled' ? scheduled : then === null ? usual : typeof then === 'string' ? null : then;

export class View {
  feed = '';
  limits: Limit[] = [];
  /** Which speeds of the feed are derived; null where nothing is known of it. */
  derivedSpeeds: DerivedSpeeds | null = null;
  parquet = false;
  alerting = false;
  /** What the rules say of the window on display; null where there are none, or where they could not be read. */
  alerts: AlertList | null = null;
  alertsFailed = '';
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
  /** Chosen by the reader; until then, what is now. */
  chosenScheme: Scheme | null = null;
  /** The local date to compare with; null for a week before, or else the day before. */
  day: string | null = null;
  /** The window of that day beside the one on display; null unless that is what the reader chose to see. */
  otherDay: OtherDay | null = null;
  /** The range whose mean is on display in place of a window, and of how many windows it is. */
  over: Over | null = null;
  overWindows = 0;
  selected: string | null = null;
  area: Area | null = null;
  /** Names of cells; null where the server has none. */
  names: Names | null = null;
  /** Whether there are lines, and what carries the colours: lines where there are any, unless the reader chooses. */
  hasLines = false;
  drawn: Drawn = { lines: false, hexagons: true, heat: false };
  /** The histogram that is drawn in place of speeds. */
  heat: Heat | null = null;
  cells = new Map<string, Hexagon>();
  earlierWindows = 0;
  days: Days = 'any';
  /** Whether the server knows scheduled speeds of the feed, and what they are in the window on display; null where they could not be read. */
  scheduling = false;
  scheduled: Map<string, number> | null = null;
  private usual = new Map<string, UsualCell>();
  private others = new Map<string, Hexagon>();
  private overlaps = overlapping(this.others);
  private resolutions: number[] = [];
  /** Of which statistics any cell of the window has what: asked for every cell. */
  private has = contentsOf([]);
  /** The chance up to which a difference is clear, of the cells as they were last coloured. */
  private level = NONE;

  /** Lines carry the colours where there are any, unless the address says otherwise. */
  setLines({ lines }: Settings, place: { lines?: 'on' | 'off'; hexagons?: 'on'; heat?: 'on' }): void {
    this.hasLines = lines;
    this.drawn = { lines: lines && place.lines !== 'off', hexagons: !lines || place.hexagons === 'on', heat: place.heat === 'on' };
  }

  setWindow(window: WindowCells, usual: Usual): void {
    this.window = window;
    const marker = window.marker;
    measure(marker?.value && marker.value !== 'speed' ? { name: marker.value, ...marker.clipping } : null);
    this.cells = new Map(window.hexagons.map((hexagon) => [hexagon.cell, hexagon]));
    this.has = contentsOf(window.hexagons);
    const finest = finestOf(window.hexagons);
    for (const hexagon of window.hexagons) if (hexagon.resolution < finest) hexagon.finest = finest;
    this.resolutions = [...new Set([finest, ...window.hexagons.map((hexagon) => hexagon.resolution)])].sort((a, b) => b - a);
    this.earlierWindows = usual.earlier_windows;
    this.days = usual.days;
    this.usual = new Map(usual.cells.map((cell) => [cell.cell, cell]));
    if (!this.available(this.statistic)) this.statistic = this.statistics()[0] ?? 'mean';
  }

  /** What stands beside the window on display; the cells are those of the other window. */
  setOtherDay(otherDay: OtherDay | null, cells: Hexagon[]): void {
    this.otherDay = otherDay;
    this.others = new Map(cells.map((hexagon) => [hexagon.cell, hexagon]));
    this.overlaps = overlapping(this.others);
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
    this.alerts = null;
    this.cells.clear();
    this.usual.clear();
    this.scheduled = null;
    this.setOtherDay(null, []);
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

  /** Nothing says what mean of moving reports is usual: ratios of noisy numbers do not average out. */
  get comparable(): boolean {
    return this.earlierWindows >= 3 && this.besideOtherDays && this.statistic !== 'moving';
  }

  /** Released values alone are compared with other days, as shares, so none that may be negative. */
  get besideOtherDays(): boolean {
    const { lower = 0 } = otherValue() ?? {};
    return !this.modelledAlone && this.statistic !== 'spread' && lower >= 0;
  }

  /** A timetable has means only. */
  get schedulable(): boolean {
    return this.scheduling && this.statistic === 'mean' && !otherValue();
  }

  get scheme(): Scheme {
    if (this.chosenScheme === 'day' && this.besideOtherDays && this.otherDay) return 'day';
    if (this.chosenScheme === 'scheduled' && this.schedulable && this.scheduled) return 'scheduled';
    return this.comparable && this.chosenScheme === 'usual' ? 'usual' : 'now';
  }

  get breaks(): number[] {
    return this.scheme !== 'now' ? RELATIVE_BREAKS : absoluteBreaks(this.statistic, this.upper);
  }

  get colours(): string[] {
    return this.scheme !== 'now' ? [...RD_YL_BU, WITHIN_NOISE[this.theme]] : viridis(this.breaks.length + 1, this.theme);
  }

  read(hexagon: Hexagon): Reading {
    return this.judge(this.compare(hexagon));
  }

  /** What is written on a cell: the number that is shown, or by how much it differs where noise does not explain that. */
  numberOf(hexagon: Hexagon): string {
    const { now, verdict, scheme } = this.read(hexagon);
    if (scheme === 'now') return now ? `${now.atBound ? '≥ ' : ''}${decimals(inUnit(now.value), 0)}` : '';
    if (!verdict?.clear) return '';
    const percent = Math.round(100 * (verdict.now.value / verdict.reference.value - 1));
    return `${percent > 0 ? '+' : '−'}${Math.abs(percent)} %`;
  }

  private compare(hexagon: Hexagon): Omit<Reading, 'verdict'> {
    const now = shown(hexagon, this.statistic, this.shownKind);
    const released = shown(hexagon, this.statistic, 'raw');
    const usual = usualOf(this.usual.get(hexagon.cell), this.statistic);
    const then = released && this.scheme === 'day' ? this.then(hexagon) : null;
    const scheduled = scheduledOf(this.scheduled?.get(hexagon.cell), this.statistic, hexagon.clipping?.upper ?? this.upper);
    return { hexagon, now, released, usual, then, scheduled, scheme: this.scheme };
  }

  private judge(compared: Omit<Reading, 'verdict'>): Reading {
    const [{ released }, reference] = [compared, referenceOf(compared)];
    return { ...compared, verdict: released && reference && judge(released, reference, this.level) };
  }

  private then = (hexagon: Hexagon) =>
    this.otherDay?.other ? thenOf(hexagon, this.others.get(hexagon.cell), this.statistic, this.overlaps) : 'window';

  /** The cell as it was released on the other day. */
  other(cell: string): Hexagon | undefined {
    return this.others.get(cell);
  }

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

  /** "Compared with usual on Tuesday at 07:00", or what is usual there of one cell. */
  usually(prefix: 'legend.against' | 'usual', values: Values = {}): string {
    const { start } = this.window!.window;
    const kind = weekend(start, this.zone) ? 'kind.weekend' : 'kind.workday';
    const days = this.days === 'kind' ? (kind as 'kind.weekend' | 'kind.workday') : this.days;
    return say(`${prefix}.${days}`, { weekday: dayOfWeek(start, this.zone), time: localClock(start, this.zone), ...values });
  }

  /** Cells that rules name, for their outlines. */
  alertingCells(): Shape[] {
    const named = [...new Set(this.alerts?.alerts.map((alert) => alert.cell))];
    return named.map((cell) => this.cells.get(cell) ?? { cell });
  }

  /** The cell on display that covers a cell of any size, or the cell itself. */
  covering(cell: string): string {
    return this.cells.has(cell) ? cell : (this.at(...centre(cell))?.cell ?? cell);
  }

  at(lng: number, lat: number): Hexagon | undefined {
    return cellAt(this.cells, this.resolutions, lng, lat);
  }

  /** How the cells look, and from now on which of their differences are clear. */
  looks(): Look[] {
    const { breaks, scheme } = this;
    const compared = [...this.cells.values()].map((hexagon) => this.compare(hexagon));
    this.level = levelOf(compared.flatMap((one) => (one.released ? [[one.released, referenceOf(one)]] : [])));
    return compared.map((one): Look => {
      const { hexagon, now } = one;
      if (isNobody(hexagon)) return { hexagon, index: -1, opacity: 0, hatched: false };
      if (!now) return { hexagon, index: -1, opacity: 0, hatched: true };
      if (scheme !== 'now') {
        const { verdict } = this.judge(one);
        return { hexagon, hatched: false, ...(verdict ? against(verdict) : { index: -1, opacity: 0.3 }) };
      }
      const { index, spans } = classify(now, breaks, 1);
      return { hexagon, index, opacity: opacity(spans), hatched: false };
    });
  }
}

/** The statistics of which any cell has a leading number of a model, one without an interval, and a released value. */
function contentsOf(hexagons: Hexagon[]): Record<'modelled' | 'unbounded' | 'released', Set<string>> {
  const has = { modelled: new Set<string>(), unbounded: new Set<string>(), released: new Set<string>() };
  for (const hexagon of hexagons) {
    for (const name of Object.values(STATISTICS)) if (hexagon[name]) has.released.add(name);
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
  const { index, spans } = classify({ ...now, low: now.value - error, high: now.value + error }, RELATIVE_BREAKS, reference.value);
  return { index, opacity: opacity(spans) };
}
