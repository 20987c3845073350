/** What a window is shown with: another day, the timetable, alerts and a histogram. What cannot be read is left out, and why is told. */

import * as api from './api';
import type { Heat } from './heat';
import { STATISTICS } from './statistics';
import { say } from './texts';
import type { AlertList, OtherDay, Scheduled, WindowSummary } from './types';
import type { View } from './view';

export interface Beside {
  /** The window of the other day and what it says of the cells; null unless that is what the reader chose to see. */
  other: OtherDay | null;
  /** Scheduled speeds; null where there are none. */
  scheduled: Scheduled[] | null;
  /** What the operator's rules say; null where there are none, or where `refused` says why they could not be read. */
  alerts: AlertList | null;
  refused: string;
  /** The histogram to draw in place of speeds; null unless that is what the reader chose to see. */
  heat: Heat | null;
  failures: string[];
}

export const NOTHING: Beside = { other: null, scheduled: null, alerts: null, refused: '', heat: null, failures: [] };

export const reasonOf = (error: unknown): string => (error instanceof api.ApiError ? error.message : say('failed.server'));

export async function besideOf(view: View, { window: { start }, histograms }: WindowSummary): Promise<Beside> {
  const [failures, mechanism]: [string[], string | undefined] = [[], histograms?.[0]];
  let refused = '';
  const read = <Read>(isWanted: boolean, ask: () => Promise<Read>, failed: (reason: string) => unknown): Promise<Read | null> =>
    isWanted ? ask().catch((error: unknown) => (failed(reasonOf(error)), null)) : Promise.resolve(null);
  const [other, scheduled, alerts, heat] = await Promise.all([
    read(view.chosenScheme === 'day' && view.statistic !== 'spread', () => api.otherDay(view.feed, start, STATISTICS[view.statistic], view.day),
      (reason) => failures.push(say('day.failed', { reason }))),
    read(view.scheduling, () => api.scheduled(view.feed, start), (reason) => failures.push(say('scheduled.failed', { reason }))),
    read(view.alerting, () => api.alerts(view.feed, start), (reason) => (refused = reason)),
    read(view.drawn.heat && mechanism !== undefined, () => api.heat(view.feed, start, mechanism!), (reason) => failures.push(reason)),
  ]);
  return { other, scheduled, alerts, refused, heat, failures };
}
