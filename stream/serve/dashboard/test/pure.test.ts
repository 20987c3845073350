import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import type { FeatureCollection, MultiPolygon, Position } from 'geojson';
import { cellToChildren, cellToParent, gridDisk, latLngToCell } from 'h3-js';
import { areaFile, boxFrom, cornerLines, cornersSoFar, counted, linesWith, parseCorners, parseRing, ringText, type Area } from '../src/area';
import { boundsOf, cellAt, centre, cornersOf, shapeOf } from '../src/hexagons';
import { land } from '../src/land';
import { piecesOf, placesIn } from '../src/lines';
import { WORLD, east, meshOf, south, type Mesh } from '../src/mesh';
import { Names } from '../src/names';
import { WITHIN_NOISE, viridis, type MapColours } from '../src/palette';
import { parsePlace, placeText } from '../src/place';
import { search } from '../src/search';
import { absoluteBreaks, absoluteLabels, classify, comparison, countText, interval, opacity, RELATIVE_BREAKS, sentence, shown, typicalOf } from '../src/statistics';
import { ago, hours, span, when } from '../src/times';
import { decimals, say } from '../src/texts';
import { choose, measure } from '../src/units';
import type { Estimate, Hexagon, WindowCells } from '../src/types';
import { View } from '../src/view';

/** As style.css states them. */
const MAP_COLOURS = Object.fromEntries(readFileSync('src/style.css', 'utf8').split('}').slice(0, 2).map((block, at) =>
  [at ? 'dark' : 'light', Object.fromEntries([...block.matchAll(/--(\w+): (#\w{6})/g)].map(([, name, colour]) => [name, colour]))])) as Record<'light' | 'dark', MapColours>;

const WINDOW = { start: '2017-03-21T12:00:00Z', end: '2017-03-21T13:00:00Z' };

const estimate = (raw: number, low: number, high: number, scale = 1): Estimate => ({
  value: Math.max(raw, 0), raw, clamped: raw < 0, scale, interval: [low, high], unit: 'km/h',
});

const led = (value: number, low: number, high: number, method = 'kalman') => ({ method, value, interval: [low, high] as [number, number], unit: 'km/h' });

const hexagon = (more: Partial<Hexagon> = {}): Hexagon => ({
  cell: '87489e342ffffff', resolution: 7, status: 'published', relation: 'values', epsilon: 2, window: WINDOW, events: 10, users: 3,
  mean: estimate(23, 19, 27), estimate: { mean: led(23, 19, 27, 'released') }, variance: { ...estimate(25, 16, 36), unit: '(km/h)^2' }, ...more,
});

test('a reading says value, interval and where the uncertainty comes from; a spread is the root of the variance; what is not there is not shown', () => {
  assert.equal(sentence(shown(hexagon(), 'mean', 'raw')!), '23 km/h, 95 % interval 19–27, noise from privacy');
  assert.deepEqual(shown(hexagon(), 'spread', 'raw'), { value: 5, low: 4, high: 6 });
  assert.equal(shown(hexagon({ status: 'suppressed' }), 'mean', 'raw'), null);
  assert.equal(shown(hexagon(), 'p85', 'raw'), null);
});

test('a value that crowds the bound of speeds is so much or more, whatever a model made of it', () => {
  const crowded = hexagon({ mean: { ...estimate(60, 50, 65), at_bound: true }, estimate: { mean: { ...led(24, 20, 28), at_bound: true } } });
  assert.equal(sentence(shown(crowded, 'mean', 'raw')!), '≥\u00a060 km/h, 95 % interval 50–65, noise from privacy');
  assert.equal(sentence(shown(crowded, 'mean', 'estimate')!), '≥\u00a024 km/h, 95 % interval 20–28, of a model');
  assert.equal(shown(crowded, 'spread', 'raw')!.atBound, undefined);
});

test('a percentile that is modelled alone is shown without an interval, whatever kind was chosen, and compared with nothing', () => {
  const led = { p50: { method: 'clipped-normal', value: 21.4, unit: 'km/h' } };
  const alone = hexagon({ estimate: led });
  const now = shown(alone, 'p50', 'estimate')!;
  assert.equal(sentence(now), '21 km/h; no interval is given for a modelled percentile');
  assert.equal(interval(now), '–');
  assert.equal(classify(now, RELATIVE_BREAKS, 20).spans, 5);
  assert.equal(shown(alone, 'p50', 'raw'), null);
  assert.equal(shown(hexagon({ estimate: led, p50: estimate(30, 20, 40) }), 'p50', 'estimate')!.low, 21.4, 'not the interval of the released one');
  const view = new View();
  view.statistic = 'p50';
  view.kind = 'raw';
  view.setWindow({ hexagons: [alone], window: WINDOW, marker: { statistics: ['mean', 'variance'], clipping: { lower: 0, upper: 65, unit: 'km/h' } } } as unknown as WindowCells);
  assert.deepEqual(view.statistics(), ['mean', 'p50', 'spread']);
  assert.deepEqual([view.statistic, view.shownKind, view.offers('typical'), view.scheme], ['p50', 'estimate', false, 'now']);
  assert.equal(view.read(alone).now!.value, 21.4);
  assert.equal(view.read(alone).verdict, null);
});

test('a value that noise carried out of range with its interval touches every class', () => {
  const lost = shown(hexagon({ mean: estimate(-40, 0, 0, 9) }), 'mean', 'raw')!;
  assert.equal(classify(lost, RELATIVE_BREAKS, 20).spans, 5);
  assert.match(sentence(lost), /beyond 0/);
});

test('a cell is full only while its interval stays in one class, and fades with every class more', () => {
  const breaks = absoluteBreaks('mean', 65);
  assert.deepEqual(breaks, [10, 15, 20, 25, 30, 40, 50]);
  const strengths = [[26, 29], [22, 29], [18, 29], [2, 60]].map(([low, high]) =>
    opacity(classify({ value: 27, low: low!, high: high! }, breaks, 1).spans));
  assert.equal(strengths[0], 0.92);
  assert.deepEqual([...strengths].sort((a, b) => b - a), strengths);
  assert.equal(new Set(strengths).size, 4);
});

test('a difference says its error, what it is from, and that of so many cells noise explains it', () => {
  const verdict = (error: number, clear: boolean) => ({ now: { value: 23, low: 22, high: 24 }, reference: 25, clear, error });
  assert.equal(comparison(verdict(5, false), { prefix: 'comparison' }), 'no difference from typical beyond the noise: −2.0 ± 5.0 km/h');
  assert.equal(comparison(verdict(1.5, false), { prefix: 'comparison' }), 'no difference from typical beyond the noise: −2.0 ± 1.5 km/h. Considering all cells of the window, that is not enough to tell it from noise.');
  assert.equal(comparison(verdict(1.5, true), { prefix: 'comparison' }), '8 % slower than typical: −2.0 ± 1.5 km/h');
  assert.equal(comparison(verdict(1.5, true), { prefix: 'comparison.scheduled' }), '8 % slower than scheduled: −2.0 ± 1.5 km/h as released, the error being noise');
  assert.equal(comparison(verdict(1.5, true), { prefix: 'comparison.day', day: 'Tue' }), '8 % slower than on Tue: −2.0 ± 1.5 km/h as released, the error being noise');
});

/** A cell with an estimate and what is typical of it, each give or take so much; `clear`: the error by which the API calls it clear. */
const typified = (cell: string, value: number, typical: number, clear_error?: number) => {
  const deviation = { ...led(value - typical, value - typical - 8, value - typical + 8), ...(clear_error ? { clear_error } : {}) };
  return hexagon({ cell, estimate: { mean: led(value, value - 6, value + 6), typical: led(typical, typical - 6, typical + 6), deviation } });
};

test('three views: the estimate, what is typical, and of their difference only what the API calls clear', () => {
  const cells = [typified('88489e3421fffff', 12, 25), typified('88489e3423fffff', 12, 25, 2)];
  const view = new View();
  view.setWindow({ hexagons: cells, window: WINDOW } as unknown as WindowCells);
  assert.equal(view.scheme, 'now', 'it opens on what is now');
  assert.deepEqual(view.looks().map(({ index }) => view.breaks[index]), [15, 15]);
  view.chosenScheme = 'typical';
  assert.deepEqual(view.looks().map(({ index }) => view.breaks[index]), [30, 30]);
  view.chosenScheme = 'difference';
  assert.deepEqual(view.looks().map(({ index }) => index), [RELATIVE_BREAKS.length + 1, 0]);
  assert.deepEqual(cells.map((cell) => view.read(cell).verdict!.error), [8, 2]);
  assert.equal(typicalOf(cells[0]!, 'p50'), null);
  view.setWindow({ hexagons: [hexagon()], window: WINDOW } as unknown as WindowCells);
  assert.equal(view.scheme, 'now', 'where nothing is typical, nothing is compared');
});

test('speeds are said in mph where that is chosen, in classes that are round in it', () => {
  choose('mph');
  try {
    assert.equal(sentence(shown(hexagon(), 'mean', 'raw')!), '14 mph, 95 % interval 12–17, noise from privacy');
    assert.deepEqual(absoluteLabels('mean', absoluteBreaks('mean', 65), 65).slice(0, 3), ['0–5', '5–10', '10–15']);
    assert.equal(absoluteLabels('mean', absoluteBreaks('mean', 65), 65).at(-1), '40–40.4');
  } finally {
    choose('km/h');
  }
});

test('another value than a speed has its name and unit, and classes between its own bounds, whatever unit speeds are said in', () => {
  choose('mph');
  measure({ name: 'delay', unit: 's', lower: -300, upper: 1800 });
  try {
    const late = { ...hexagon().mean!, value: 420, raw: 420, interval: [-80, 920] as [number, number], unit: 's' };
    assert.equal(sentence(shown(hexagon({ mean: late }), 'mean', 'raw')!), '420 s, 95 % interval -80–920, noise from privacy');
    assert.deepEqual(absoluteLabels('mean', absoluteBreaks('mean', 1800), 1800), ['-300–0', '0–500', '500–1\u202f000', '1\u202f000–1\u202f500', '1\u202f500–1\u202f800']);
    assert.equal(say('mean.name'), 'Mean delay');
    assert.equal(say('comparison.slower', { percent: 12 }), '12 % lower than typical');
  } finally {
    measure(null);
    choose('km/h');
  }
  assert.equal(say('mean.name'), 'Mean speed of all reports');
});

test('counts are said as exact or as about', () => {
  assert.equal(countText(1328), '1\u202f328');
  assert.deepEqual([decimals(1234567.125, 2), decimals(0.00012, 5), decimals(-36882, 0), decimals(999, 0)], ['1\u202f234\u202f567.13', '0.00012', '-36\u202f882', '999']);
  assert.equal(countText({ value: 120, interval: [80, 160] }), 'about 120 (95 % interval 80–160)');
  assert.equal(countText({ value: 1328, interval: null }), '1\u202f328');
});

test('a drawn area is read from address and form, and what is wrong in one is refused with its reason', () => {
  const drawn = { ring: [[-97.8, 30.2], [-97.7, 30.2], [-97.7, 30.3]], name: '<b>Ost & West</b> شارع' };
  const open = { kind: 'drawn' as const, drawn };
  assert.deepEqual(parseRing(ringText(drawn.ring), drawn.name), open);
  assert.deepEqual(parseCorners(cornerLines(drawn.ring), ` ${drawn.name} `), open);
  assert.deepEqual(parsePlace(placeText({ area: open })), { area: open });
  const ring = ringText(drawn.ring);
  const refused = { corners: [['1,2,1,2,1,2', ''], ['1,2,3,4', ''], [Array(10_000).fill('1.5,2.5').join(), ''], [Array(101).fill('1,2').join(), '']],
    ring: [['', ''], ['1,2,3,4,5', ''], ['1,2,3,4,5,<b>', ''], ['181,2,3,4,5,6', ''], ['1e9,2,3,4,5,6', ''], ['1,91,3,4,5,6', '']],
    name: [[ring, 'x'.repeat(81)], [ring, 'a\nb'], [ring, 'a\u2028b'], [ring, '\u200b'], [ring, '\ud800'],
      [ring, '🚲'], [ring, '12'], [ring, '-97.8,30.2,-97.7,30.3'], [ring, '→'], [ring, 'route:10'], [ring, ' route:10']] };
  for (const [reason, cases] of Object.entries(refused)) {
    for (const [corners, name] of cases) {
      const area = parseRing(corners!, name!);
      assert.equal(area.kind === 'refused' && area.refusal.reason, reason, `${corners!.slice(0, 40)} ${name}`);
    }
  }
  for (const name of ['می\u200cخواهم', 'क्\u200dष', 'Route 10', '12 a', 'Park 👨\u200d👩\u200d👧', 'Zone 1\ufe0f\u20e3']) {
    assert.deepEqual(parseRing(ring, name), { kind: 'drawn', drawn: { ring: drawn.ring, name } });
  }
  assert.deepEqual(parseRing(ring, 'a\u202eb'), { kind: 'drawn', drawn: { ring: drawn.ring, name: 'ab' } });
  const file = JSON.parse(areaFile(drawn, 'none'));
  assert.deepEqual([file.features[0].geometry.coordinates[0].length, file.features[0].properties.name], [4, drawn.name]);
});

test('a line of the form that is no corner is named', () => {
  const lines = '30.2, -97.8\n30.2, -97.7\n30.3, -97.7';
  for (const line of ['30.3', 'near the bridge', '91, 5']) {
    const area = parseCorners(`${lines}\n  ${line} `, '');
    assert.deepEqual(area, { kind: 'refused', refusal: { reason: 'line', count: 0, line } });
  }
});

test('a corner that is drawn joins what is typed, of which half a line stays', () => {
  const corners = [[-97.8, 30.2], [-97.7, 30.3]];
  assert.equal(linesWith(corners, '30.2, -97.8\n30.3'), '30.20000, -97.80000\n30.3\n30.30000, -97.70000');
  assert.equal(linesWith(corners, 'near the\n\n91, 5\n30.2 -97.8'), 'near the\n91, 5\n30.20000, -97.80000\n30.30000, -97.70000');
  assert.equal(linesWith(corners, '30.2, -97.8\n30.3, -97.7'), cornerLines(corners));
  assert.equal(linesWith([], '30.'), '30.');
});

test('corners that are typed count before there are three of them, and a line that is none does not', () => {
  assert.deepEqual(cornersSoFar('30.2, -97.8\n'), [[-97.8, 30.2]]);
  assert.deepEqual(cornersSoFar('30.2, -97.8\n30.123456 -97.7\n30.3,\n91, 0\n<b>'), [[-97.8, 30.2], [-97.7, 30.12346]]);
  assert.deepEqual(cornersSoFar(''), []);
});

test('a box that is typed, dragged or addressed has five decimals and lies on Earth, or is none', () => {
  const box = boxFrom([-1e-7, 1e-7, 10.1234567, 20])!;
  assert.equal(box.join(), '0,0,10.12346,20');
  assert.deepEqual(parsePlace(placeText({ area: { kind: 'box', box } })), { area: { kind: 'box', box } });
  assert.deepEqual(parsePlace('#area=-97.81234567,30.2,-97.7,30.3').area, { kind: 'box', box: [-97.81235, 30.2, -97.7, 30.3] });
  for (const bounds of [[1, 1, 1, 2], [1, 1, 1.000001, 2], [2, 1, 1, 2], [-181, 0, 1, 1], [0, 0, 181, 1], [0, -91, 1, 1], [0, 0, 1, 90.1], [NaN, 0, 1, 1], [0, 0, Infinity, 1], []]) {
    assert.equal(boxFrom(bounds), null, bounds.join());
  }
});

test('a cell is called by its own stop, its neighbours, what it covers, or its routes', () => {
  const cell = '87489e342ffffff';
  const [beside, far] = [gridDisk(cell, 1).find((other) => other !== cell)!, gridDisk(cell, 4).at(-1)!];
  const place = (of: string, name: string | null, stops: number, ...routes: string[]) => ({ cell: of, name, stops, routes });
  const names = new Names({ resolution: 7, cells: [place(cell, 'Congress / 6th', 2, '10'), place(far, null, 0, '1', '2', '3', '4')] });
  assert.equal(names.of(cell), 'Congress / 6th');
  assert.equal(names.of(beside), 'near Congress / 6th');
  assert.equal(names.of(cellToParent(cell, 6)), 'around Congress / 6th');
  assert.equal(names.of(cellToChildren(cell, 9)[3]!), 'near Congress / 6th');
  assert.equal(names.of(far), 'on routes 1, 2, 3 …');
  assert.equal(names.of('871fb4671ffffff'), null);
  assert.deepEqual(names.routes(cellToParent(cell, 6)), ['10']);
});

test('a search finds every word without accents or capitals, whole names first', () => {
  const entry = (text: string) => ({ kind: 'place' as const, text, folded: text.normalize('NFD').replaceAll(/\p{M}/gu, '').toLowerCase(), target: '' });
  const entries = ['Nürnberg Hbf / Süd', 'Süd', 'Südbahnhof', 'Nord', '<b>Süd</b>'].map(entry);
  assert.deepEqual(search(entries, ' SUD ').map(({ text }) => text), ['Süd', 'Südbahnhof', '<b>Süd</b>', 'Nürnberg Hbf / Süd']);
  assert.deepEqual(search(entries, 'süd hbf').map(({ text }) => text), ['Nürnberg Hbf / Süd']);
  assert.deepEqual(search(entries, '(.*)'), []);
});

test('an address shows the same place again, and nothing hostile comes out of one', () => {
  const place = { at: { zoom: 10.5, lat: 30.25, lng: -97.75 }, window: WINDOW.start, statistic: 'p85' as const, cell: '87489e342ffffff' };
  assert.deepEqual(parsePlace(placeText(place)), place);
  const { cell: _, ...rest } = place;
  const areas: Area[] = [{ kind: 'box', box: [-97.81234, 30.2, -97.7, 30.3] },
    ...['route:10', 'Ost & West/#1', 'شارع'].map((name): Area => ({ kind: 'named', name }))];
  for (const area of areas) assert.deepEqual(parsePlace(placeText({ ...rest, area })), { ...rest, area });
  assert.deepEqual(parsePlace('#at=99/1/1&window=<b>&cell=../../x&area=1,2,3&statistic=constructor&colours=1&feed=../x&from=now&to=<b>'), {});
  const played = { feed: 'night-bus', from: WINDOW.start, to: WINDOW.end, colours: 'day' as const, day: '2016-02-29' };
  assert.deepEqual(parsePlace(placeText(played)), played);
  for (const day of ['2017-02-29', '2017-2-1', '0000-01-01', '+12017-01-01', 'today', '<b>']) assert.deepEqual(parsePlace(`#day=${day}`), {});
});

const channels = (colour: string) => [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16) / 255);

/** Luminance of a colour of full strength on a ground (WCAG 2.2). */
function luminance(colour: string, ground = colour): number {
  const below = channels(ground);
  const mixed = channels(colour).map((value, at) => opacity(1) * value + (1 - opacity(1)) * below[at]!);
  const [red, green, blue] = mixed.map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!;
}
const contrast = (one: number, other: number) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);

test('every class of speed, and the outline of a sure value, has a contrast of 3 with the land (WCAG 1.4.11), and a faster class is lighter', () => {
  for (const { edge, land } of Object.values(MAP_COLOURS)) assert.ok(contrast(luminance(edge, land), luminance(land)) >= 3);
  for (const colour of viridis(10, 'dark')) assert.ok(contrast(luminance(colour, MAP_COLOURS.dark.land), luminance(MAP_COLOURS.dark.land)) >= 3);
  for (const theme of ['light', 'dark'] as const) {
    const lights = viridis(10, theme).map((colour) => luminance(colour));
    assert.deepEqual(lights, lights.toSorted((a, b) => a - b));
  }
});

test('where noise explains a difference, the cell is not what stands out most, and in the dark the names on it can be read', () => {
  for (const theme of ['light', 'dark'] as const) {
    const { land } = MAP_COLOURS[theme];
    const [grey, ...coloured] = [WITHIN_NOISE[theme], '#d7191c', '#2c7bb6'].map((colour) => contrast(luminance(colour, land), luminance(land)));
    assert.ok(coloured.every((clear) => clear >= 2.5 && clear >= 0.85 * grey!), `${theme} ${grey} ${coloured}`);
  }
  const { land, name, waterName } = MAP_COLOURS.dark;
  const grey = luminance(WITHIN_NOISE.dark, land);
  for (const colour of [name, waterName]) assert.ok(contrast(luminance(colour), grey) >= 3);
  assert.ok(contrast(grey, luminance(land)) >= 2.5);
});

test('times are said in the feed’s zone, or in UTC where no such zone is known', () => {
  assert.equal(when(WINDOW, 'America/Chicago'), 'Tue, 21 Mar 2017, 07:00–08:00');
  assert.equal(hours(WINDOW, '<b>nowhere</b>'), '12:00–13:00');
  const said = (tell: (milliseconds: number) => string) => [20, 90 * 60, 3 * 86_400, 30 * 86_400, 264 * 86_400, 3400 * 86_400].map((seconds) => tell(seconds * 1000));
  assert.deepEqual(said(span), ['less than a minute', '2 hours', '3 days', '4 weeks', '9 months', '9 years']);
  assert.deepEqual(said(ago), ['less than a minute ago', '2 hours ago', '3 days ago', '4 weeks ago', '9 months ago', '9 years ago']);
});

test('an hour that the clocks show twice is told apart, and no other is', () => {
  const hour = (start: string, end: string, zone: string) => hours({ start, end }, zone);
  const [first, second] = [hour('2017-11-05T06:00:00Z', '2017-11-05T07:00:00Z', 'America/Chicago'), hour('2017-11-05T07:00:00Z', '2017-11-05T08:00:00Z', 'America/Chicago')];
  assert.deepEqual([first, second], ['01:00 GMT-5–01:00 GMT-6', '01:00 GMT-6–02:00']);
  assert.equal(hour('2017-11-05T05:00:00Z', '2017-11-05T06:00:00Z', 'America/Chicago'), '00:00–01:00 GMT-5');
  assert.equal(hour('2017-03-12T07:00:00Z', '2017-03-12T08:00:00Z', 'America/Chicago'), '01:00–03:00');
  assert.match(hour('2025-04-05T14:30:00Z', '2025-04-05T15:30:00Z', 'Australia/Lord_Howe'), /^01:30 GMT\+11–02:00$/);
  assert.match(hour('2025-10-26T00:00:00Z', '2025-10-26T01:00:00Z', 'Antarctica/Troll'), /^02:00 GMT\+2–01:00 GMT(\+0)?$/);
});

test('a cell is found at its centre, the finer before the coarser', () => {
  const cells = new Map([['87489e342ffffff', 'coarse'], ['88489e3421fffff', 'fine']]);
  assert.equal(cellAt(cells, [8, 7], ...centre('88489e3421fffff')), 'fine');
  assert.equal(cellAt(cells, [8, 7], 0, 0), undefined);
  // A corner of a child that its parent's own hexagon leaves out is its parent's all the same.
  const parent = '87489e342ffffff';
  const out = cellToChildren(parent, 9).map(centre).find(([x, y]) => latLngToCell(y, x, 7) !== parent)!;
  assert.equal(cellAt(new Map([[parent, 'merged']]), [9, 7], ...out), 'merged');
});

test('the first view holds cells with their outlines, also what is left of a merged one', () => {
  const cells = [{ cell: '87489e342ffffff' }, { cell: '86489e347ffffff', excludes: ['87489e345ffffff'], finest: 7 }];
  const [west, south, east, north] = boundsOf(cells)!;
  const points = cells.flatMap((cell) => shapeOf(cell).coordinates.flat(cell.excludes ? 2 : 1) as number[][]);
  assert.deepEqual([west, south], [0, 1].map((axis) => Math.min(...points.map((point) => point[axis]!))));
  assert.deepEqual([east, north], [0, 1].map((axis) => Math.max(...points.map((point) => point[axis]!))));
  assert.equal(boundsOf([]), null);
});

/** Places of the vertices of each triangle on the world, as they are drawn in the copy of it that is nearest to `lng`. */
function drawn({ places, corners, triangles }: Mesh, lng: number): { cell: number; inside: number; x: number; y: number }[] {
  const units = Math.floor(east(lng) * WORLD);
  return [...triangles].map((at) => ({
    cell: places[3 * at + 2]!,
    inside: corners[3 * at + 2]!,
    x: east(lng) + ((places[3 * at]! - units) | 0) / WORLD + corners[3 * at]!,
    y: places[3 * at + 1]! / WORLD + corners[3 * at + 1]!,
  }));
}

/** Area of triangles, each of three vertices that follow one another. */
const areaOf = (vertices: { x: number; y: number }[]) =>
  vertices.reduce((sum, { x, y }, at) => {
    const [a, b] = [vertices[at - 2]!, vertices[at - 1]!];
    return at % 3 === 2 ? sum + Math.abs((b.x - a.x) * (y - a.y) - (b.y - a.y) * (x - a.x)) / 2 : sum;
  }, 0);

test('a cell is drawn with its corners to a pixel of the largest zoom, also across the antimeridian and at a pentagon', () => {
  for (const cell of ['88489e3421fffff', '847eb57ffffffff', '8009fffffffffff', '8f489e342100000']) {
    const corners = cornersOf(cell);
    const outer = drawn(meshOf([{ cell, resolution: 0 }]), corners[0]!).filter(({ inside }) => !inside);
    assert.equal(outer.length, corners.length);
    for (const { x, y } of outer) {
      const away = Array.from({ length: corners.length / 2 }, (_, at) => Math.hypot(x - east(corners[2 * at]!), y - south(corners[2 * at + 1]!)));
      assert.ok(Math.min(...away) < 2 ** -31 + (2 ** -24 * Math.abs(corners[0]! - corners[4]!)) / 360, `${cell}: ${Math.min(...away)}`);
    }
  }
  assert.ok(Math.max(...cornersOf('847eb57ffffffff').filter((_, at) => at % 2 === 0)) > 180, 'that cell crosses the antimeridian');
  assert.ok(cornersOf('8009fffffffffff').length < 12, 'that cell is a pentagon');
});

test('what is left of a merged cell is drawn without the cells apart, its outline without the edges within it', () => {
  const cell = '86489e347ffffff';
  const apart = ['87489e345ffffff'];
  const whole = drawn(meshOf([{ cell, resolution: 6, finest: 7 }]), -97.7);
  const rest = drawn(meshOf([{ cell, resolution: 6, excludes: apart, finest: 7 }]), -97.7);
  const child = drawn(meshOf([{ cell: apart[0]!, resolution: 7 }]), -97.7);
  assert.ok(Math.abs((areaOf(rest) + areaOf(child)) / areaOf(whole) - 1) < 1e-6, 'they overlap nowhere and leave no gap');
  const edges = rest.filter((_, at) => at % 3 === 0 && !rest[at + 1]!.inside).length;
  const shape = shapeOf({ cell, excludes: apart, finest: 7 });
  assert.deepEqual([shape.type, shapeOf({ cell }).type], ['MultiPolygon', 'Polygon']);
  const rings = shape.coordinates.flat() as number[][][];
  assert.equal(edges, rings.reduce((sum, ring) => sum + ring.length - 1, 0));
});

test('fine cells are drawn over coarse ones, and each is known by its place in the list', () => {
  const { parts, places } = meshOf([
    { cell: '88489e3421fffff', resolution: 8 },
    { cell: '87489e342ffffff', resolution: 7 },
    { cell: '88489e3423fffff', resolution: 8 },
  ]);
  assert.deepEqual(parts, [{ resolution: 7, first: 0, count: 18 }, { resolution: 8, first: 18, count: 36 }]);
  assert.deepEqual([...new Set([...places].filter((_, at) => at % 3 === 2))], [1, 0, 2]);
  assert.equal(meshOf([]).triangles.length, 0);
});

test('a range count says what was counted and holds its number, or says that it has no interval', () => {
  const one = { value: 0, interval: [0, 14] as [number, number], mechanism: 'auto', fixes_per_user: 1 };
  assert.equal(counted(one), 'Users whose last position was in the box, by the spatial histogram (auto): 0, 95 % interval 0–14.');
  assert.match(counted({ ...one, value: 2345.4, interval: [1200, 3400] }), /: 2\u202f345, 95 % interval 1\u202f200–3\u202f400\.$/);
  assert.match(counted({ ...one, fixes_per_user: 3 }), /^Positions in the box, at most 3 of one user, by/);
  assert.match(counted({ ...one, mechanism: 'euler' }), /^Regions of users/);
  assert.match(counted({ ...one, interval: null }), /: 0, no interval, because the release does not describe its noise\.$/);
});

test('a line is cut where it leaves a cell, and each piece has the place of the cell in which it lies, merged or not', () => {
  const line = [[-97.8, 30.2], [-97.75, 30.25], [-97.7, 30.25]];
  const { ends, cells } = piecesOf([line, [...line].reverse()].map((path) => ({ path, width: 1 })), 7);
  const length = (a: number[], b: number[]) => Math.hypot(a[0]! - b[0]!, a[1]! - b[1]!);
  const pieces = cells.map((cell, at) => ({ cell, from: [...ends.slice(4 * at, 4 * at + 2)], to: [...ends.slice(4 * at + 2, 4 * at + 4)] }));
  assert.ok(new Set(cells).size > 4, 'it crosses many cells');
  const long = pieces.filter(({ from, to }) => length(from, to) > 3e-4);
  for (const { cell, from, to } of long) {
    for (const share of [0.02, 0.5, 0.98]) assert.equal(latLngToCell(from[1]! + share * (to[1]! - from[1]!), from[0]! + share * (to[0]! - from[0]!), 7), cell);
  }
  assert.ok(pieces.length < 2 * new Set(cells).size, 'a straight line is one piece in a cell');
  const whole = length(line[0]!, line[1]!) + length(line[1]!, line[2]!);
  assert.ok(Math.abs(pieces.reduce((sum, { from, to }) => sum + length(from, to), 0) - whole) < 1e-9, 'what two lines share is there once');
  const merged = cellToParent(cells[0]!, 6);
  const places = placesIn(cells, [merged, cells.at(-1)!]);
  assert.deepEqual([places[0], places.at(-1)], [0, 1]);
  cells.forEach((cell, at) => assert.equal(places[at], cell === cells.at(-1) ? 1 : cellToParent(cell, 6) === merged ? 0 : -1));
});

test('a sensor is a dot in its cell, and every piece has the width of its line', () => {
  const main = { path: [[-97.7, 30.3], [-97.7, 30.301]], width: 1 };
  const { ends, widths, cells } = piecesOf([{ path: [[-97.74, 30.27]], width: 2.5 }, main, { ...main, path: [[-97.6, 30.3], [-97.6, 30.301]], width: 0.5 }], 7);
  assert.deepEqual([...ends.slice(0, 4)], [-97.74, 30.27, -97.74, 30.27]);
  assert.deepEqual([[...widths], cells[0]], [[2.5, 1, 0.5], latLngToCell(30.27, -97.74, 7)]);
});

test('what a window holds is looked up once and not for every cell', () => {
  let asked = 0;
  const cells = [...new Set(gridDisk('87489e342ffffff', 12))].map((cell) => {
    const one = hexagon({ cell });
    const { estimate } = one;
    return Object.defineProperty(one, 'estimate', { get: () => ((asked += 1), estimate), enumerable: true });
  });
  const view = new View();
  view.setWindow({ hexagons: cells, window: WINDOW, marker: { statistics: ['mean'], clipping: { lower: 0, upper: 65, unit: 'km/h' } } } as unknown as WindowCells);
  view.looks();
  cells.forEach((one) => view.read(one));
  assert.ok(asked < 20 * cells.length, `${asked} for ${cells.length} cells`);
});

/** Whether a place, or the same a turn further, is inside of polygons, by even and odd crossings of their rings. */
function isLand(lng: number, lat: number, polygons: Position[][][]): boolean {
  let inside = false;
  for (const ring of polygons.flat())
    for (const [at, [x, y]] of ring.entries()) {
      const [nextX, nextY] = ring[(at + 1) % ring.length]! as [number, number];
      if (y! > lat !== nextY > lat && lng < x! + ((lat - y!) / (nextY - y!)) * (nextX - x!)) inside = !inside;
    }
  return inside;
}

test('land is land, also where rings cross 180° or go around a pole', () => {
  const { data } = land(MAP_COLOURS.light, 5).sources['land'] as { data: FeatureCollection<MultiPolygon> };
  const polygons = data.features.flatMap(({ geometry }) => geometry.coordinates);
  const places = { Norway: [9, 61], Austin: [-97.7, 30.3], Chukotka: [175, 66.5], SouthPole: [0, -85], Fiji: [178, -17.8] };
  const seas = { NorthSea: [3, 57], Atlantic: [-40, 30], Pacific: [-150, 10], Arctic: [0, 85] };
  for (const [name, [lng, lat]] of Object.entries(places)) assert.ok([-360, 0, 360].some((turn) => isLand(lng! + turn, lat!, polygons)), name);
  for (const [name, [lng, lat]] of Object.entries(seas)) assert.ok(![-360, 0, 360].some((turn) => isLand(lng! + turn, lat!, polygons)), name);
});
