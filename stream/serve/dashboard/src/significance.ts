/**
 * Which differences of a view noise does not explain, although there are many of them. Pure.
 *
 * Each cell has a chance: a bound on the probability that noise alone makes a difference as large as its own, if the exact
 * values are equal. Of the cells of a window, those are clear whose chances Benjamini and Hochberg (1995) choose: the share of
 * the clear ones without a true difference, 0 where none is clear, is at most FALSE_SHARE on average over windows; where no
 * cell differs, at most that share of windows has a clear cell. It needs independent noise, which released values have, and modelled
 * ones do not: their errors depend on each other and do not average out over windows.
 *
 * A clear difference was chosen because it came out large, and noise was part of that. So its error is that of the level at
 * which it was chosen (Benjamini and Yekutieli 2005, theorem 1): the share of the clear ones whose error does not hold the
 * true difference, 0 where none is clear, is at most FALSE_SHARE on average over windows.
 */

import { LAPLACE, deviations, difference, type Reference, type Shown, type Verdict } from './statistics';

export const FALSE_SHARE = 0.05;

/** No chance is as small, so no difference is clear. */
export const NONE = -1;

/** Halvings of the range in which the error of a clear difference is sought: to 2⁻²⁰ of that difference. */
const HALVINGS = 20;

/**
 * Bound on the chance of a difference as large, both sides together; 1 within its 95 % error, and where the value is lost.
 * Two values with Laplace noise: exact. Gaussian noise: normal. With one of each, a difference beyond its 95 % error is rarer than
 * with Laplace noise of both (the ratio of the tails was computed for every share of the variance up to 12 deviations). Values
 * without noise that differ at all do so for certain.
 */
export function chance(now: Shown, other: Reference): number {
  const { value, error } = difference(now, other);
  const size = Math.abs(value);
  return now.outside || size <= error ? 1 : tail(size, now, other);
}

/** Bound on the chance that noise alone makes the two values differ by more than `size`. */
function tail(size: number, now: Shown, other: Reference): number {
  const [nearer, further] = deviations(now, other);
  if (nearer + further === 0) return 0;
  if (now.quantile !== LAPLACE && other.quantile !== LAPLACE) return normalTail(size / Math.hypot(nearer, further));
  return twoLaplace(size, nearer / Math.SQRT2, further / Math.SQRT2);
}

/** P(|X + Y| > x) of independent Laplace noise of two scales; of nearly equal ones, for the larger of them twice. */
function twoLaplace(x: number, one: number, other: number): number {
  const [s, t] = [Math.max(one, other), Math.min(one, other)];
  if (s - t < 1e-3 * s) return Math.exp(-x / s) * (1 + x / (2 * s));
  const ratio = t / s;
  return (Math.exp(-x / s) - ratio * ratio * Math.exp(-x / t)) / (1 - ratio * ratio);
}

/** P(|Z| > z) of normal Z, to a relative 2 in 10 million (Numerical Recipes, section 6.2, erfcc). */
export function normalTail(z: number): number {
  const x = z / Math.SQRT2;
  const t = 1 / (1 + 0.5 * x);
  const series = [0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223];
  return t * Math.exp(-x * x + series.reduce((sum, factor) => sum * t + factor, 0));
}

/** The chance up to which differences are clear, given those of a window; {@link NONE} where none is. */
export function clearLevel(chances: number[], cells: number): number {
  const share = FALSE_SHARE / cells;
  const ascending = Float64Array.from(chances).sort();
  let count = ascending.length;
  while (count && ascending[count - 1]! > share * count) count -= 1;
  return count ? share * count : NONE;
}

/**
 * The same of values with what each is compared with. A value without that counts as a cell, too: whether it has it may depend
 * on noise, and a cell that counts and is not clear makes the others no more so.
 */
export function levelOf(compared: [Shown, Reference | null][]): number {
  const chances = compared.flatMap(([now, other]) => (other ? [chance(now, other)] : []));
  return clearLevel(chances, compared.length);
}

/** Whether a difference is clear at a level, and its error: that of the level if it is, else 95 % of its own noise. */
export function judge(now: Shown, reference: Reference, level: number): Verdict {
  const { value, error } = difference(now, reference);
  if (chance(now, reference) > level) return { now, reference, clear: false, error };
  let [within, beyond] = [error, Math.abs(value)];
  for (let step = 0; step < HALVINGS; step += 1) {
    const middle = (within + beyond) / 2;
    if (tail(middle, now, reference) > level) within = middle;
    else beyond = middle;
  }
  return { now, reference, clear: true, error: beyond };
}
