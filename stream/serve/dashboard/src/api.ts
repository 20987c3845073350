/** Requests to the read API; every address is relative to the page. */

import type { FeatureCollection, MultiLineString, MultiPoint, Point, Position } from 'geojson';
import { overQuery } from './over';
import { say } from './texts';
import type {
  AlertList, Along, AreaName, AreaStatistics, Box, HeatFeatures, Hexagon, MeanList, OtherDay, Over, PlaceList, RangeCount, RouteWay, Scheduled, Settings, WindowCells, WindowSummary,
} from './types';

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** What a reader is told of an error. */
export const reasonOf = (error: unknown): string => (error instanceof ApiError ? error.message : say('failed.server'));

/** Milliseconds after which an answer that does not come counts as none: a browser waits for ever. */
const PATIENCE = 60_000;

async function get<T>(path: string, query: Record<string, string> = {}, seen: (response: Response) => void = () => undefined): Promise<T> {
  const text = new URLSearchParams(query).toString();
  const response = await fetch(text ? `${path}?${text}` : path, { signal: AbortSignal.timeout(PATIENCE) });
  seen(response);
  const body: unknown = await response.json().catch(() => null);
  if (!response.ok) {
    const problem = body as { title?: string; detail?: string } | null;
    const said = [problem?.title, problem?.detail].filter(Boolean).join(': ');
    throw new ApiError(response.status, said || say('failed.status', { status: response.status }));
  }
  return body as T;
}

/** Milliseconds by which the server's clock was ahead of this computer's when the settings were last read. */
let ahead = 0;

/** The time by the server's clock: that of a screen on a wall may be hours off. */
export const now = () => Date.now() + ahead;

export const settings = () => get<Settings>('dashboard/settings', {}, ({ headers }) => {
  const date = Date.parse(headers.get('Date') ?? '');
  if (!Number.isNaN(date)) ahead = date - Date.now();
});

export const windows = async (feed: string) =>
  (await get<{ windows: WindowSummary[] }>('api/v1/windows', { feed, limit: '1000' })).windows;

export const cells = (feed: string, start: string) =>
  get<WindowCells>('api/v1/hexagons', { feed, window: start });

export const scheduled = async (feed: string, start: string) =>
  (await get<{ cells: Scheduled[] }>(`api/v1/windows/${encodeURIComponent(start)}/scheduled`, { feed })).cells;

/** `day`: a local date; without one, that of a week before or else the day before. */
export const otherDay = (feed: string, start: string, statistic: string, day: string | null) =>
  get<OtherDay>(`api/v1/windows/${encodeURIComponent(start)}/other-day`, { feed, statistic, ...(day ? { day } : {}) });

export const alerts = (feed: string, start: string) => get<AlertList>('api/v1/alerts', { feed, window: start });

export const places = () => get<PlaceList>('api/v1/places');

/** The lines of all routes and streets, and sensors as lines of one place. */
export async function lines(): Promise<Position[][]> {
  const found = await Promise.all(['api/v1/routes', 'api/v1/streets'].map((path) => get<FeatureCollection<MultiLineString | MultiPoint>>(path)));
  return found.flatMap(({ features }) => features).flatMap(({ geometry }) =>
    geometry.type === 'MultiPoint' ? geometry.coordinates.map((at) => [at]) : geometry.coordinates);
}

const travelPath = ({ route, over }: Along) => `api/v1/routes/${encodeURIComponent(route)}/${over ? 'means' : 'speed'}`;

const travelQuery = (feed: string, { from, to, over, window }: Along): Record<string, string> =>
  ({ feed, ...(over ? overQuery(over) : window ? { window } : {}), ...(from ? { from_stop: from } : {}), ...(to ? { to_stop: to } : {}) });

/** The ways along the lines of a route. */
export const travel = async (feed: string, along: Along) =>
  (await get<{ lines: RouteWay[] }>(travelPath(along), travelQuery(feed, along))).lines;

export const travelAddress = (feed: string, along: Along) =>
  `${travelPath(along)}?${new URLSearchParams({ ...travelQuery(feed, along), format: 'csv' })}`;

/** How the API is told of an area: by its name, or by the longitude and latitude of every corner. */
type Which = { area: string } | { ring: string };

/** Means over a range, of an area or of all cells. */
export const means = (feed: string, over: Over, which?: Which) => get<MeanList>('api/v1/means', { feed, ...overQuery(over), ...which });

export const stops = async () => (await get<FeatureCollection<Point, { name: string }>>('api/v1/stops')).features;

export const areas = async () => (await get<{ areas: AreaName[] }>('api/v1/areas')).areas;

export const area = (feed: string, which: Which, start?: string) => {
  const [path, query] = 'area' in which ? [`api/v1/areas/${encodeURIComponent(which.area)}`, {}] : ['api/v1/area', which];
  return get<AreaStatistics>(path, { feed, ...query, ...(start ? { window: start } : {}) });
};

export const history = async (feed: string, cell: string) =>
  (await get<{ releases: Hexagon[] }>(`api/v1/cells/${encodeURIComponent(cell)}`, { feed })).releases;

export const heat = (feed: string, start: string, mechanism: string) => get<HeatFeatures>('api/v1/heat', { feed, window: start, mechanism });

export const count = (feed: string, start: string, mechanism: string, box: Box) =>
  get<RangeCount>(`api/v1/histograms/${encodeURIComponent(start)}/count`, { feed, mechanism, bbox: box.join(',') });

export function downloadAddress(feed: string, start: string, format: string): string {
  return `api/v1/windows/${encodeURIComponent(start)}/download.${format}?feed=${encodeURIComponent(feed)}`;
}

export const areasAddress = (feed: string, start: string) => `api/v1/windows/${encodeURIComponent(start)}/areas.csv?feed=${encodeURIComponent(feed)}`;

export const rangeAddress = (feed: string, from: string, to: string, format: string) =>
  `api/v1/download.${format}?${new URLSearchParams({ from, to, feed })}`;

const RETRY = 2_000;

const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Resolves once the server has read everything that was released before it started. */
export async function caughtUp(onWait: () => void): Promise<void> {
  for (;;) {
    const answer = await fetch('readyz').catch(() => null);
    if (answer?.ok) return;
    onWait();
    await pause(RETRY);
  }
}

/**
 * Calls `onWindow` for every window finished after event `after`, and `onLink` when the connection comes or goes. The
 * browser tries again by itself after a broken connection, but not after an answer that is an error: then a new
 * connection is made here. A tab that nobody sees has none, because a browser has only six for all tabs of a server; it
 * learns of the windows it missed when it is seen again.
 */
export function follow(feed: string, after: number, onWindow: (window: WindowSummary) => void, onLink: (up: boolean) => void): void {
  let source: EventSource | null = null;
  const open = (): void => {
    if (source || document.hidden) return;
    const mine = (source = new EventSource(`api/v1/stream?${new URLSearchParams({ feed, after: String(after) })}`));
    mine.addEventListener('open', () => onLink(true));
    mine.addEventListener('error', () => {
      if (mine !== source) return;
      onLink(false);
      if (mine.readyState !== EventSource.CLOSED) return;
      source = null;
      setTimeout(open, RETRY);
    });
    mine.addEventListener('window', (event) => {
      const { data, lastEventId } = event as MessageEvent<string>;
      after = Number(lastEventId);
      onWindow(JSON.parse(data));
    });
  };
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) return open();
    source?.close();
    source = null;
  });
  open();
}
