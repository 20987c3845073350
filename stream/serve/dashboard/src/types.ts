/** What the read API sends: see the JSON Schemas of the topics. */

import type { MultiPolygon } from 'geojson';

export interface Estimate {
  value: number;
  raw: number;
  clamped: boolean;
  scale: number;
  interval: [number, number];
  unit: string;
  /** The value crowds the bound of speeds, so true speeds may be higher. */
  at_bound?: true;
}

/** The number to show first, and the model that made it, or `released`. */
export interface Leading {
  method: string;
  value: number;
  interval?: [number, number];
  unit: string;
  at_bound?: true;
  /** Of a deviation that noise does not explain, although there are many cells: its error then. */
  clear_error?: number;
}

export type Measured = 'mean' | 'moving_mean' | 'variance' | 'p15' | 'p50' | 'p85';

export interface Hexagon extends Partial<Record<Measured, Estimate>> {
  cell: string;
  resolution: number;
  status: 'published' | 'suppressed';
  relation: 'values' | 'participation';
  epsilon: number;
  accounting?: 'zcdp';
  /** How users of "participation" are weighted. */
  weight?: 'share' | 'user' | 'sample';
  /** Bounds of the cell's speeds, where it has its own. */
  clipping?: { lower: number; upper: number; unit: string };
  window: Bounds;
  /** Absent where users are counted instead: weights "share" and "user". */
  events?: number | Estimate;
  users: number | Estimate;
  /** The leading number of each statistic; null where the cell was not published, and where nobody is estimated. */
  estimate: Partial<Record<Measured | 'typical' | 'deviation', Leading>> | null;
  excludes?: string[];
  /** Of a merged cell, the finest resolution of its window; set by the page. */
  finest?: number;
}

export interface Bounds {
  start: string;
  end: string;
}

export interface Marker {
  feed: string;
  relation: 'values' | 'participation';
  epsilon: number;
  /** ε of all spatial histograms together, which is spent besides; absent where there are none. */
  histogram_epsilon?: number;
  withheld?: boolean;
  budget: number;
  accounting?: 'zcdp';
  rho?: number;
  rho_budget?: number;
  delta?: number;
  period: Bounds & { timezone: string };
  /** Name of the value, absent where it is speed. */
  value?: string;
  clipping: { lower: number; upper: number; unit: string };
  resolution: number;
  statistics: string[];
}

export interface WindowSummary {
  feed: string;
  window: Bounds;
  complete: boolean;
  /** Number of the window's event in the stream. */
  event_id: number | null;
  cells: number;
  marker: Marker | null;
  /** Mechanisms of the spatial histograms of this window, where there are any. */
  histograms?: string[];
}

export interface WindowCells extends WindowSummary {
  hexagons: Hexagon[];
  /** Sums over all cells; null where the cells have no such number. */
  totals: Record<'events' | 'users', AreaCount | null>;
}

/** Why a cell has no value of another day. */
export type Missing = 'none' | 'suppressed' | 'area' | 'settings' | 'statistic' | 'uncertain';

/** Columns of the cells that have the statistic in the window on display, with what was released of each on another day. */
export interface Beside {
  cell: string[];
  missing: (Missing | null)[];
  value: number[];
  low: number[];
  high: number[];
  at_bound: boolean[];
  /** Of a cell that was not published, how many there were, where that is public. */
  users: (number | null)[];
  error: number[];
  clear: boolean[];
}

/** The window of another local day that begins at the same local time, or the reason why there is none. */
export interface OtherDay {
  day: string;
  statistic: Measured;
  cells: Beside | null;
  other: WindowSummary | null;
  reason: 'same' | 'gone' | 'withheld' | 'incomplete' | 'later' | 'settings' | 'clocks' | 'none' | null;
  /** Starts of the oldest and the newest window that the server keeps. */
  oldest: string | null;
  newest: string | null;
}

/** A rule of the operator; exactly one of the four conditions is not null. */
export interface AlertRule {
  name: string;
  below: number | null;
  above: number | null;
  slower_km_h: number | null;
  slower_percent: number | null;
  unit: string;
  windows: number;
  false_alarms_per_day: number;
  /** How many cells of the window the rule covers. */
  cells: number;
}

export interface Alert {
  rule: string;
  cell: string;
  new: boolean;
  value: number;
  limit: number;
}

export interface AlertList {
  rules: AlertRule[];
  alerts: Alert[];
}

export interface Settings {
  /** Which page the server has: it changes when the server is upgraded. */
  build: string;
  /** Whether the operator has rules for alerts. */
  alerting: boolean;
  /** The feed of the server's configuration, and all that have windows. */
  feed: string;
  feeds: string[];
  /** What the configured feed's map is for: what is, or what is typical of the hour. */
  map: 'live' | 'typical';
  /** Which speeds of the configured feed are derived from positions: those that are missing, or all; null of none. */
  derived_speeds: 'missing' | 'derived' | null;
  domain: [number, number, number, number];
  basemap: boolean;
  /** Whether anything can carry the colours of cells: lines of the operator, or a basemap of vectors. */
  lines: boolean;
  /** Whether cells have names, whether the operator serves lines or stops, and whether there are named areas. */
  places: boolean;
  network: boolean;
  /** Whether the operator's streets have names, and what is to be said about them. */
  street_names: boolean;
  attribution: string | null;
  areas: boolean;
  /** Whether cells have scheduled speeds. */
  scheduled: boolean;
  /** Whether the server can write Parquet. */
  parquet: boolean;
}

export interface PlaceCell {
  cell: string;
  name: string | null;
  stops: number;
  routes: string[];
}

export interface PlaceList {
  /** Of all cells; null where there are no places. */
  resolution: number | null;
  cells: PlaceCell[];
}

/** A scheduled speed in the hours of a window, in km/h. `error` of the difference of the released mean, null where the two are not compared; `clear`: noise does not explain it. */
export interface Scheduled {
  cell: string;
  value: number;
  error: number | null;
  clear: boolean;
}

export interface AreaName {
  name: string;
  kind: 'polygon' | 'route';
}

export interface AreaCount {
  value: number;
  interval: [number, number] | null;
}

/** Windows that begin in [from, to), on such days and in such local hours, the last of which does not count. */
export interface Over {
  from: string;
  to: string;
  days: 'any' | 'workday' | 'saturday' | 'sunday' | 'weekend';
  hours: [number, number];
}

/** What carries the colours: lines of streets, where there are any, hexagons, or both; or a histogram in their place. */
export interface Drawn {
  lines: boolean;
  hexagons: boolean;
  heat: boolean;
}

/** A place on the map, and the cell of the places' resolution in which it lies. */
export interface Spot {
  name: string;
  at: [number, number];
  cell: string;
}

/** A way of which windows are asked: one, or those of a range; between two stops, or from end to end. */
export interface Along {
  route: string;
  from: string | undefined;
  to: string | undefined;
  over: Over | null;
  window: string | undefined;
}

/** A timetable has no intervals. */
export interface Travel {
  minutes: number;
  minutes_interval?: [number, number | null];
  km_h: number;
  km_h_interval?: [number, number];
  /** Much of the way is in cells at the bound of speeds: so fast, or faster. */
  at_bound?: true;
}

/** The way along one line of a route, in its direction. Minutes and speeds are of the metres in cells with a number. */
export interface RouteWay {
  line: number;
  to_stop: string | null;
  stops: string[];
  metres: number;
  measured_metres: number;
  now?: Travel | null;
  typical?: Travel | null;
  /** Over a range, in place of the other two. */
  mean?: Travel | null;
  scheduled: Travel | null;
}

interface Together {
  events: AreaCount | null;
  users: AreaCount | null;
  /** Null where the noise leaves it open. */
  mean: { value: number; raw: number; interval: [number, number]; unit: string; at_bound?: true } | null;
}

/** Means over the windows of a range; `together`: of all of these cells. */
export interface MeanList {
  windows: number;
  cells: (Together & { cell: string; excludes: string[]; windows: number })[];
  together: Together;
}

/** Those of a drawn area have neither name nor kind. */
export interface AreaStatistics extends Partial<AreaName> {
  cells: number;
  published: number;
  events: AreaCount | null;
  /** Where there are no events. */
  users: AreaCount | null;
  /** The leading mean; null where nobody is estimated. */
  estimate: (Leading & { interval: [number, number] }) | null;
  geometry: MultiPolygon;
}

/** West, south, east, north in degrees. */
export type Box = [number, number, number, number];
