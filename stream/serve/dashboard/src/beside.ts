/** What stands beside a window: another day and the timetable. If one cannot be read, the window is shown without it. */

import * as api from './api';
import { say, type TextKey } from './texts';
import type { Hexagon, OtherDay, WindowCells, WindowSummary } from './types';
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

/** The window of the other day and its cells, where that is what the reader wants to see. */
export const otherDay = (view: View, { window }: WindowSummary, load: (window: WindowSummary) => Promise<WindowCells>) =>
  reading<{ day: OtherDay | null; hexagons: Hexagon[] }>(view.chosenScheme === 'day', { day: null, hexagons: [] }, 'day.failed', async () => {
    const day = await api.otherDay(view.feed, window.start, view.day ?? undefined);
    return { day, hexagons: day.other ? (await load(day.other)).hexagons : [] };
  });

/** Scheduled speeds in a window, where the server has a timetable. */
export const scheduledIn = (view: View, { window }: WindowSummary) =>
  reading<{ cell: string; value: number }[] | null>(view.scheduling, null, 'scheduled.failed', () => api.scheduled(view.feed, window.start));
