/** The unit in which speeds are said: km/h, in which they are released, until the reader chooses mph. */

export type Unit = 'km/h' | 'mph';

const KEY = 'hexveil-unit';
const KMH_PER_MILE = 1.609344;

let chosen: Unit = stored();

function stored(): Unit {
  try {
    return localStorage.getItem(KEY) === 'mph' ? 'mph' : 'km/h';
  } catch {
    return 'km/h';
  }
}

export const unit = () => chosen;

/** Say speeds in this unit from now on, and in later visits. */
export function choose(wanted: Unit): void {
  chosen = wanted;
  try {
    localStorage.setItem(KEY, wanted);
  } catch {
    // The choice holds until the page is closed.
  }
}

/** A speed in km/h, or a difference of speeds, in the chosen unit. */
export const inUnit = (kmh: number) => (chosen === 'mph' ? kmh / KMH_PER_MILE : kmh);

/** A speed of the chosen unit in km/h. */
export const fromUnit = (value: number) => (chosen === 'mph' ? value * KMH_PER_MILE : value);
