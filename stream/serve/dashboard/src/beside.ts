/** What a window is shown with: another day, the timetable, alerts and a histogram. What cannot be read is left out, and why is told. */

import * as api from './api';
import { STATISTICS } from './statistics';
import { say } from './texts';
import type { WindowSummary } from './types';
import type { Beside, View } from './view';

export async function besideOf(view: View, { window: { start }, histograms }: WindowSummary): Promise<Beside> {
  const [failures, mechanism]: [string[], string | undefined] = [[], histograms?.[0]];
  let refused = '';
  const read = <Read>(isWanted: boolean, ask: () => Promise<Read>, failed: (reason: string) => unknown): Promise<Read | null> =>
    isWanted ? ask().catch((error: unknown) => (failed(api.reasonOf(error)), null)) : Promise.resolve(null);
  const [other, scheduled, alerts, heat] = await Promise.all([
    read(view.chosenScheme === 'day' && view.statistic !== 'spread', () => api.otherDay(view.feed, start, STATISTICS[view.statistic], view.day),
      (reason) => failures.push(say('day.failed', { reason }))),
    read(view.scheduling, () => api.scheduled(view.feed, start), (reason) => failures.push(say('scheduled.failed', { reason }))),
    read(view.alerting, () => api.alerts(view.feed, start), (reason) => (refused = reason)),
    read(view.drawn.heat && mechanism !== undefined, () => api.heat(view.feed, start, mechanism!), (reason) => failures.push(reason)),
  ]);
  return { other, scheduled, alerts, refused, heat, failures };
}
