/** What the parts of the page ask of the whole. */

import type { Scheme, Statistic } from './statistics';
import type { Over, Spot, WindowSummary } from './types';
import type { Unit } from './units';

export interface Page {
  /** Show the window of that position and stop following. */
  to(index: number): void;
  /** Follow new windows, or pause. */
  live(on: boolean): void;
  statistic(statistic: Statistic): void;
  scheme(scheme: Scheme): void;
  /** Change what is shown of the window on display. */
  change(apply: () => void): void;
  unit(unit: Unit): void;
  /** Other things carry the colours. */
  redraw(): void;
  /** Show a window that is played; resolves once it is on the screen. */
  play(window: WindowSummary): Promise<void>;
  /** Ask for the cells of a window that comes next. */
  prepare(window: WindowSummary): void;
  /** The range of windows, or whether it is played, changed. */
  played(): void;
  isPlaying(): boolean;
  mean(over: Over): void;
  open(cell: string): void;
  spot(spot: Spot): void;
  area(name: string): void;
  areaChanged(): void;
  centre(): void;
  /** Another cell is chosen, or another area open. */
  selected(): void;
}
