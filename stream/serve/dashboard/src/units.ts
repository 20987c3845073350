/**
 * The unit in which values are said. Speeds are in km/h, in which they are released, until the reader chooses mph; another
 * value has the unit that its feed states.
 */

import { keep, recall } from './kept';

export type Unit = 'km/h' | 'mph';

/** Another value than a speed: its name, its unit, and the bounds that it is clipped to. */
export interface Value {
  name: string;
  unit: string;
  lower: number;
  upper: number;
}

const KEY = 'hexveil-unit';
const KMH_PER_MILE = 1.609344;

let chosen: Unit = recall(KEY) === 'mph' ? 'mph' : 'km/h';
let measured: Value | null = null;

/** What the window on display is about: null for speeds. */
export const otherValue = () => measured;

export function measure(value: Value | null): void {
  measured = value;
}

export const unit = () => measured?.unit ?? chosen;

/** The reader's choice, by which distances are said, too. */
export const chosenUnit = () => chosen;

/** Say speeds in this unit from now on, and in later visits. */
export function choose(wanted: Unit): void {
  chosen = wanted;
  keep(KEY, wanted);
}

/** A released value, or a difference of values, in the unit in which it is said. */
export const inUnit = (kmh: number) => (chosen === 'mph' && !measured ? kmh / KMH_PER_MILE : kmh);

/** A value as it is said in the unit in which it is released. */
export const fromUnit = (value: number) => (chosen === 'mph' && !measured ? value * KMH_PER_MILE : value);
