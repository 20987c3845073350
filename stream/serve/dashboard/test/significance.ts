import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FALSE_SHARE, NONE, chance, clearLevel, judge, levelOf, normalTail } from '../src/significance';
import { LAPLACE, NORMAL, difference, type Reference, type Shown } from '../src/statistics';

/** Views of a simulation, cells of each, and the seed of its noise. */
const [VIEWS, CELLS, SEED] = [2000, 200, 19];
/** Standard deviations of a simulated share above its bound that a right rule exceeds once in a million runs. */
const FAR = 4.75;

/** Uniform numbers in (0, 1) (mulberry32). */
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return (((mixed ^ (mixed >>> 14)) >>> 0) + 0.5) / 2 ** 32;
  };
}

type Uniform = () => number;
const laplace = (uniform: Uniform) => Math.log(uniform() / uniform());
const gaussian = (uniform: Uniform) => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());

type Pair = [Shown, Reference];

const value = (exact: number, noise: number, deviation: number, quantile: number): Shown => ({
  value: exact + noise * deviation, low: exact + noise * deviation - quantile * deviation, high: exact + noise * deviation + quantile * deviation, deviation, quantile,
});

/** A cell of a view: `shift` is the true difference in standard deviations of the noise of the value on display. */
const KINDS: Record<string, (uniform: Uniform, shift: number) => Pair> = {
  'another day': (uniform, shift) => {
    const [one, other] = [0.5 + uniform(), 0.5 + uniform()];
    return [value(30 + shift * one, laplace(uniform) / Math.SQRT2, one, LAPLACE), value(30, laplace(uniform) / Math.SQRT2, other, LAPLACE)];
  },
  'Gaussian noise': (uniform, shift) => [value(30 + shift, gaussian(uniform), 1, NORMAL), value(30, gaussian(uniform), 1, NORMAL)],
  'Gaussian against Laplace noise': (uniform, shift) =>
    [value(30 + shift, gaussian(uniform), 1, NORMAL), value(30, laplace(uniform) / Math.SQRT2, 0.5 + uniform(), LAPLACE)],
};

/** Cells of one view, the first `differing` of which differ by `shift`. */
function viewOf(kind: string, uniform: Uniform, differing: number, shift: number): Pair[] {
  return Array.from({ length: CELLS }, (_, index) => KINDS[kind]!(uniform, index < differing ? shift : 0));
}

/** Of each view, how many of the first `differing` cells and of the others are clear by a rule. */
function counts(kind: string, differing: number, shift: number, views: number, rule: (pairs: Pair[]) => (pair: Pair) => boolean): [number, number][] {
  const uniform = generator(SEED);
  return Array.from({ length: views }, () => {
    const pairs = viewOf(kind, uniform, differing, shift);
    const clear = pairs.map(rule(pairs));
    return [clear.slice(0, differing).filter(Boolean).length, clear.slice(differing).filter(Boolean).length];
  });
}

const corrected = (pairs: Pair[]) => {
  const level = levelOf(pairs);
  return ([now, other]: Pair) => chance(now, other) <= level;
};

/** The planted error: every cell by its own 95 % error, as if it were the only one. */
const uncorrected = () => ([now, other]: Pair) => {
  const { value: size, error } = difference(now, other);
  return Math.abs(size) > error;
};

const shareAbove = (views: number, share: number) => share + FAR * Math.sqrt((share * (1 - share)) / views);

for (const kind of Object.keys(KINDS)) {
  test(`of views in which no cell differs, at most one in twenty has a coloured cell: ${kind}`, () => {
    const any = counts(kind, 0, 0, VIEWS, corrected).filter(([, wrong]) => wrong).length;
    assert.ok(any / VIEWS <= shareAbove(VIEWS, FALSE_SHARE), `${any} of ${VIEWS}`);
  });
}

test('without the correction nearly every view has a coloured cell though none differs, which the same test refuses', () => {
  const any = counts('another day', 0, 0, 200, uncorrected).filter(([, wrong]) => wrong).length;
  assert.ok(any / 200 > 0.95 && any / 200 > shareAbove(200, FALSE_SHARE), `${any} of 200`);
});

test('where some cells differ, the mean share of the coloured that do not stays at most one in twenty, and uncorrected does not', () => {
  const share = (rule: typeof corrected, kind: string, shift = 8) =>
    counts(kind, 20, shift, 500, rule).reduce((sum, [right, wrong]) => sum + wrong / Math.max(right + wrong, 1), 0) / 500;
  for (const kind of Object.keys(KINDS)) {
    for (const shift of [3, 5, 8]) {
      const found = share(corrected, kind, shift);
      assert.ok(found <= FALSE_SHARE + FAR * Math.sqrt(FALSE_SHARE / 500), `${kind}, ${shift}: ${found}`);
    }
  }
  assert.ok(share(uncorrected, 'Gaussian noise') > 0.2);
});

/** Least share of the differing cells that is coloured where 20 of 200 cells differ by that many standard deviations of one value. */
const POWER: [kind: string, shift: number, least: number][] = [['another day', 8, 0.75], ['Gaussian noise', 8, 0.95]];

test('true differences of eight standard deviations of the noise are mostly coloured', () => {
  for (const [kind, shift, least] of POWER) {
    const power = counts(kind, 20, shift, 200, corrected).reduce((sum, [right]) => sum + right, 0) / (20 * 200);
    console.log(`power: ${kind}, ${shift} deviations: ${power.toFixed(3)}`);
    assert.ok(power >= least, `${kind}: ${power}`);
  }
});

/** On average over views, the share of the coloured cells whose error does not hold the true difference; 0 where none is coloured. */
function missed(kind: string, shift: number, errorOf: (pair: Pair, level: number) => number): number {
  const uniform = generator(SEED);
  let sum = 0;
  for (let view = 0; view < VIEWS; view += 1) {
    const pairs = viewOf(kind, uniform, 20, shift);
    const level = levelOf(pairs);
    const misses = pairs.flatMap((pair, index) => {
      const [now, other] = pair;
      if (chance(now, other) > level) return [];
      const exact = index < 20 ? shift * (kind === 'another day' ? now.deviation : 1) : 0;
      return [Number(Math.abs(now.value - other.value - exact) > errorOf(pair, level))];
    });
    sum += misses.reduce((total, miss) => total + miss, 0) / Math.max(misses.length, 1);
  }
  return sum / VIEWS;
}

test('on average over views, the errors of at most one coloured cell in twenty miss the true difference, and their own 95 % errors miss more', () => {
  const bound = FALSE_SHARE + FAR * Math.sqrt(FALSE_SHARE / VIEWS);
  for (const kind of Object.keys(KINDS)) {
    for (const shift of [0, 4, 8]) {
      const share = missed(kind, shift, ([now, other], level) => judge(now, other, level).error);
      console.log(`errors of coloured cells, ${kind}, ${shift} deviations: ${share.toFixed(3)} miss`);
      assert.ok(share <= bound, `${kind}, ${shift}: ${share}`);
    }
  }
  const own = missed('another day', 4, ([now, other]) => difference(now, other).error);
  assert.ok(own > bound, `${own}`);
});

test('the error of a clear difference is below it, at least that of its own noise, and as wide as the level asks', () => {
  const [now, other] = [value(50, 0, 1, LAPLACE), value(30, 0, 1, LAPLACE)];
  const own = difference(now, other).error;
  let before = own;
  for (const level of [0.05, 1e-3, 1e-5, 1e-7]) {
    const { clear, error } = judge(now, other, level);
    assert.ok(clear && error >= before && error < 20, `${level}: ${error}`);
    assert.ok(level === 0.05 || Math.abs(chance(value(30 + error, 0, 1, LAPLACE), other) / level - 1) < 1e-3);
    before = error;
  }
  assert.deepEqual(judge(now, other, NONE), { now, reference: other, clear: false, error: own });
  const certain = judge(value(20, 0, 0, LAPLACE), value(30, 0, 0, LAPLACE), 0.01);
  assert.ok(certain.clear && certain.error < 1e-4);
});

test('chances bound how often noise alone brings such a difference, far out as well', () => {
  const uniform = generator(SEED);
  for (const kind of Object.keys(KINDS)) {
    const draws = 200_000;
    const chances = Array.from({ length: draws }, () => chance(...KINDS[kind]!(uniform, 0)));
    for (const level of [0.02, 1e-3, 1e-4]) {
      const share = chances.filter((one) => one <= level).length / draws;
      assert.ok(share <= shareAbove(draws, level), `${kind}: ${share} at ${level}`);
    }
  }
});

test('the normal tail is that of the tables', () => {
  for (const [z, tail] of [[1.959964, 0.05], [3.290527, 1e-3], [4.891638, 1e-6], [6.466951, 1e-10]] as const)
    assert.ok(Math.abs(normalTail(z) / tail - 1) < 1e-5, `${z}: ${normalTail(z)}`);
});

test('chances are chosen as by Benjamini and Hochberg', () => {
  assert.equal(clearLevel([0.012, 0.03, 0.04, 0.9], 4), 0.05 / 4);
  assert.equal(clearLevel([0.012, 0.03, 0.037, 0.9], 4), (0.05 / 4) * 3, 'the largest counts, though 0.03 alone would not');
  assert.equal(clearLevel([0.012], 5), NONE, 'cells with nothing to compare with count');
  assert.equal(clearLevel([], 0), NONE);
  assert.equal(clearLevel([0, 1], 2), 0.025, 'a chance too small for a number');
});

test('values without noise that differ are clear, and hide no other cell', () => {
  const certain: Pair = [value(20, 0, 0, LAPLACE), value(30, 0, 0, LAPLACE)];
  assert.equal(chance(...certain), 0);
  assert.equal(chance(value(20, 0, 0, NORMAL), { value: 30, deviation: 0 }), 0);
  assert.ok(chance(value(20, 0, 1, LAPLACE), value(30, 0, 1e-200, LAPLACE)) < 1e-5);
  const large: Pair = [value(10, 0, 0.2, LAPLACE), value(40, 0, 0.2, LAPLACE)];
  assert.ok(levelOf([certain, ...Array<Pair>(50).fill(large)]) >= chance(...large));
});

test('cells with nothing to compare with count', () => {
  const of: Pair = [value(33, 0, 1, NORMAL), value(30, 0, 0.1, NORMAL)];
  const among = (cells: number) => levelOf([of, ...Array<[Shown, null]>(cells - 1).fill([value(30, 0, 1, NORMAL), null])]);
  assert.ok(chance(...of) > 0.002 && chance(...of) < 0.003, `${chance(...of)}`);
  assert.equal(levelOf(Array.from({ length: 20 }, () => of)), 0.05);
  assert.equal(among(10), 0.05 / 10, 'that is enough');
  assert.equal(among(30), NONE, '0.05 / 30 is not');
});

test('the exponential rate of a chance is that of the Laplace noise, whichever side has it', () => {
  for (const size of [20, 40]) {
    const nowLaplace = chance(value(30 + size, 0, 1, LAPLACE), value(30, 0, 0.3, NORMAL));
    const thenLaplace = chance(value(30 + size, 0, 0.3, NORMAL), value(30, 0, 1, LAPLACE));
    for (const one of [nowLaplace, thenLaplace]) {
      assert.ok(one >= Math.exp(-size * Math.SQRT2) && one < 2 * Math.exp(-size * Math.SQRT2), `${size}: ${nowLaplace}, ${thenLaplace}`);
    }
  }
});

test('a value that noise carried out of range is never clear, nor a difference within its own error', () => {
  const other = value(30, 0, 0.1, LAPLACE);
  assert.equal(chance({ ...value(5, 0, 0.1, LAPLACE), outside: true }, other), 1);
  assert.equal(chance(value(30.2, 0, 0.1, LAPLACE), other), 1);
});
