/** What the read API sends, as the page calls it, and what the page itself knows. */

import type * as api from './schemas';

export type {
  Alert, AlertList, AlertRule, AreaCount, Bounds, CellsBeside, CloseMarker as Marker, Area as AreaName, HeatFeatures, MeanList, OtherDay, Place as PlaceCell, PlaceList, RangeCount,
  ReleasedNumber as Estimate, ScheduledSpeed as Scheduled, Window as WindowSummary,
} from './schemas';

export type Measured = 'mean' | 'moving_mean' | 'variance' | 'p15' | 'p50' | 'p85';

/** Exact, or with noise. */
type Count = number | api.ReleasedNumber;

/** `finest`: of a merged cell, the finest resolution of its window; set by the page. */
export type Hexagon = Omit<api.Hexagon, 'feed' | 'events' | 'users' | Measured> & Partial<Record<Measured, api.ReleasedNumber>> & { events?: Count; users: Count; finest?: number };

export type WindowCells = Omit<api.HexagonList, 'hexagons' | 'map'> & { hexagons: Hexagon[] };

/** Why a cell has no value of another day. */
export type Missing = NonNullable<api.CellsBeside['missing'][number]>;

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
export type Travel = api.TravelScheduled & Partial<api.Travel>;

/** The way along one line of a route, in its direction: now and typically, or in the mean of a range. */
export type RouteWay = Omit<api.RouteWay, 'now' | 'typical'> & Partial<Pick<api.RouteWay, 'now' | 'typical'> & Pick<api.RouteMean, 'mean'>>;

/** Those of a drawn area have neither name nor kind. */
export type AreaStatistics = api.DrawnAreaStatistics & Partial<api.Area>;

/** West, south, east, north in degrees. */
export type Box = [number, number, number, number];
