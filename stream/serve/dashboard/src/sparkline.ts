/** A cell's past as a small plot: released values with their 95 % band. */

import uPlot from 'uplot';
import { make } from './dom';
import { reading as read, shown, speed, type Kind, type Shown, type Statistic } from './statistics';
import { say } from './texts';
import { inUnit, otherValue, unit } from './units';
import { clock, day, known as knownZone, weekday } from './times';
import type { Hexagon } from './types';

const KEPT = 7 * 24;

/** The plot that is drawn: uPlot listens to the screen until it is told to end. */
let drawn: uPlot | null = null;
/** The frame in which the next one is drawn; on a screen that is locked it does not come. */
let awaited = 0;

export function sparkline(
  releases: Hexagon[],
  statistic: Statistic,
  kind: Kind,
  zone: string,
  current: string,
  upper: number,
): HTMLElement {
  const past = releases.slice(-KEPT);
  const values = past.map((release) => shown(release, statistic, kind));
  const known = values.filter((value): value is Shown => value !== null);
  const plot = make('div', { class: 'plot', 'aria-hidden': 'true' });
  const caption = make('figcaption', {}, describe(past, known, zone));
  const figure = make('figure', { class: 'sparkline' }, plot, caption);
  if (known.length < 2) {
    plot.remove();
    return figure;
  }
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const at = past.map((release) => Date.parse(release.window.start) / 1000);
  const line = (pick: (value: Shown) => number) => values.map((value) => (value ? inUnit(pick(value)) : null));
  const days = at.at(-1)! - at[0]! > 2 * 86_400;
  const tick = (second: number) => (days ? weekday : clock)(new Date(second * 1000).toISOString(), zone);
  const axis = {
    stroke: colour('--quiet'),
    font: '11px system-ui, sans-serif',
    grid: { stroke: colour('--line'), width: 1 },
    ticks: { show: false },
  };
  const marker = (chart: uPlot) => {
    const x = Math.round(chart.valToPos(Date.parse(current) / 1000, 'x', true));
    if (x < chart.bbox.left - 1 || x > chart.bbox.left + chart.bbox.width + 1) return;
    chart.ctx.save();
    chart.ctx.fillStyle = colour('--accent');
    chart.ctx.fillRect(x - devicePixelRatio, chart.bbox.top, 2 * devicePixelRatio, chart.bbox.height);
    chart.ctx.restore();
  };
  // Drawn once the figure has a width.
  cancelAnimationFrame(awaited);
  awaited = requestAnimationFrame(() => {
    drawn?.destroy();
    drawn = new uPlot(
      {
        width: Math.max(plot.clientWidth, 200),
        height: 120,
        legend: { show: false },
        cursor: { show: false },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), knownZone(zone)),
        scales: { y: { range: (_, __, high) => [otherValue()?.lower ?? 0, Math.min(Math.max(high * 1.05, 10), inUnit(upper))] } },
        axes: [
          { ...axis, size: 26, space: 60, values: (_, splits) => splits.map(tick) },
          { ...axis, size: 30, space: 30 },
        ],
        series: [
          {},
          { stroke: 'transparent', points: { show: false } },
          { stroke: 'transparent', points: { show: false } },
          { stroke: colour('--text'), width: 1.5, points: { show: known.length < 40, size: 4, fill: colour('--text') } },
        ],
        bands: [{ series: [2, 1], fill: colour('--band') }],
        hooks: { draw: [marker] },
      },
      [at, line((value) => value.low), line((value) => value.high), line((value) => value.value)],
      plot,
    );
  });
  return figure;
}

function describe(past: Hexagon[], known: Shown[], zone: string): string {
  if (known.length < 2) return say('cell.few');
  const lowest = known.reduce((a, b) => (b.value < a.value ? b : a));
  const highest = known.reduce((a, b) => (b.value > a.value ? b : a));
  const since = past[0]!.window.start;
  return say(known.some((value) => value.unbounded) ? 'cell.plot.unbounded' : 'cell.plot', {
    count: known.length,
    since: `${day(since, zone)}, ${clock(since, zone)}`,
    low: speed(lowest.value, lowest),
    high: read(highest),
    unit: unit(),
  });
}
