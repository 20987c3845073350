/** Colours of classes, light and dark, and of the map. RdYlBu is ColorBrewer's, viridis is matplotlib's. */

export type Theme = 'light' | 'dark';

export const RD_YL_BU = ['#d7191c', '#fdae61', '#ffffbf', '#abd9e9', '#2c7bb6'];

/** Densities from few to many (ColorBrewer's YlOrRd). */
export const YL_OR_RD = ['#ffeda0', '#fed976', '#feb24c', '#fd8d3c', '#fc4e2a', '#e31a1c', '#b10026'];

/** A cell whose difference may be noise: it recedes behind those that differ, and the names on it can be read. */
export const WITHIN_NOISE: Record<Theme, string> = { light: '#b4bbc0', dark: '#626c74' };

const VIRIDIS = ['#440154', '#482878', '#3e4989', '#31688e', '#26828e', '#1f9e89', '#35b779', '#6ece58', '#b5de2b', '#fde725'];

/** Viridis with its dark end mixed with white, so that every colour has a contrast of 3 with dark land and lightness still rises. */
const VIRIDIS_ON_DARK = ['#916a9a', '#8c78aa', '#8087b1', '#7096b1', '#60a3ac', '#49b09f', '#41bb81', '#6ece58', '#b5de2b', '#fde725'];

/** `count` colours of viridis from slow to fast. */
export function viridis(count: number, theme: Theme): string[] {
  const ramp = theme === 'dark' ? VIRIDIS_ON_DARK : VIRIDIS;
  return Array.from({ length: count }, (_, index) => ramp[Math.round((index * (ramp.length - 1)) / Math.max(count - 1, 1))]!);
}

const NAMES = ['sea', 'land', 'coast', 'edge', 'hatch', 'unknown', 'selected', 'alert', 'road', 'green', 'built', 'name', 'waterName'] as const;
export type MapColours = Record<(typeof NAMES)[number], string>;

/** The colours of the map in the present theme, as style.css states them. */
export function mapColours(): MapColours {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])) as MapColours;
}
