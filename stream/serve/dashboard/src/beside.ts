/** What stands beside a window: another day and the timetable. If one cannot be read, the window is shown without it. */

import * as api from './api';
import { say, type TextKey } from './texts';
import { STATISTICS } from './statistics';
import type { OtherDay, Scheduled, WindowSummary } from './types';
import type { View } from './view';

/** What was read, or nothing and why. */
export interface Beside<Read> {
  read: Read;
  failed?: string;
}

export const reasonOf = (error: unknown): string => (error instanceof api.ApiError ? error.message : say('failed.server'));

async function reading<Read>(wanted: boolean, nothing: Read, failed: TextKey, read: () => Promise<Read>): Promise<Beside<Read>> {
  if (!wanted) return { read: nothing };
  try {
    return { read: await read() };
  } catch (error) {
    return { read: nothing, failed: say(failed, { reason: reasonOf(error) }) };
  }
}

/** The window of the other day and what it says of the cells, where that is what the reader wants to see. */
export const otherDay = (view: View, { window }: WindowSummary) =>
  reading<OtherDay | null>(view.chosenScheme === 'day' && view.statistic !== 'spread', null, 'day.failed', () =>
    api.otherDay(view.feed, window.start, STATISTICS[view.statistic], view.day));

/** Scheduled speeds in a window, where the server has a timetable. */
export const scheduledIn = (view: View, { window }: WindowSummary) =>
  reading<Scheduled[] | null>(view.scheduling, null, 'scheduled.failed', () => api.scheduled(view.feed, window.start));
