/** What is inside a box: its hexagons together, and the count of a spatial histogram in words. Pure. */

import type { Counted } from './api';
import { inside } from './hexagons';
import { LAPLACE, NORMAL, countOf, isNoisy, shown, type Shown } from './statistics';
import { decimals, say } from './texts';
import type { Box, Hexagon } from './types';

export interface Together {
  cells: number;
  published: number;
  /** Events or, where only users are counted, users. */
  events: { value: number; low: number; high: number; exact: boolean; ofUsers: boolean };
  /** Null under "participation", too: with noisy weights the server alone computes it, for named areas. */
  mean: Shown | null;
}

/** Mean weighted by events from raw values, which alone are unbiased; intervals add as independent noise does. */
export function together(hexagons: Iterable<Hexagon>, box: Box, upper: number): Together {
  const within = [...hexagons].filter((hexagon) => inside(hexagon.cell, box));
  const measured = within.filter((hexagon) => hexagon.status === 'published' && hexagon.mean);
  let [weights, sum, variance, events, eventsVariance, exact, gaussian] = [0, 0, 0, 0, 0, true, true];
  for (const hexagon of within) {
    const [count, { accounting }] = [countOf(hexagon), hexagon];
    events += isNoisy(count) ? count.raw : count;
    eventsVariance += isNoisy(count) ? noiseVariance(count.scale, accounting) : 0;
    exact &&= !isNoisy(count);
    gaussian &&= accounting === 'zcdp';
  }
  for (const hexagon of measured) {
    const [count, { mean }] = [countOf(hexagon), hexagon];
    const weight = isNoisy(count) ? 0 : count;
    weights += weight;
    sum += weight * mean!.raw;
    variance += (weight * shown(hexagon, 'mean', 'raw')!.deviation) ** 2;
  }
  const quantile = gaussian ? NORMAL : LAPLACE;
  const spread = quantile * Math.sqrt(eventsVariance);
  return {
    cells: within.length,
    published: measured.length,
    events: { value: Math.max(events, 0), low: Math.max(events - spread, 0), high: Math.max(events + spread, 0), exact, ofUsers: within.some((hexagon) => hexagon.events === undefined) },
    mean: weights > 0 ? clipped(sum / weights, Math.sqrt(variance) / weights, quantile, upper) : null,
  };
}

/** Variance of Laplace noise of scale b, or of Gaussian noise of scale sigma. */
const noiseVariance = (scale: number, accounting: Hexagon['accounting']) => (accounting === 'zcdp' ? 1 : 2) * scale ** 2;

function clipped(value: number, deviation: number, quantile: number, upper: number): Shown {
  const half = quantile * deviation;
  const clip = (number: number) => Math.min(Math.max(number, 0), upper);
  return { value: clip(value), low: clip(value - half), high: clip(value + half), deviation, quantile };
}

/** "Users whose last position was in the box, by the spatial histogram (auto): 12, 95 % interval 3–30." */
export function counted({ value, interval, mechanism, fixes_per_user: most }: Counted): string {
  const what = mechanism === 'euler' ? 'area.regions' : most === 1 ? 'area.users' : 'area.fixes';
  const range = interval ? say('area.interval', { low: interval[0], high: interval[1] }) : say('area.no-interval');
  return say(what, { mechanism, most, value: decimals(Math.max(value, 0), 0), range });
}
