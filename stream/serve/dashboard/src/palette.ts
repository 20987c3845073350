/** Colours of classes and of the map, light and dark. RdYlBu is ColorBrewer's, viridis is matplotlib's. */

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

export interface MapColours {
  sea: string;
  land: string;
  coast: string;
  edge: string;
  hatch: string;
  unknown: string;
  selected: string;
  alert: string;
  road: string;
  green: string;
  built: string;
  name: string;
  waterName: string;
}

export const MAP_COLOURS: Record<Theme, MapColours> = {
  light: {
    sea: '#cfdde4',
    land: '#eef0f1',
    coast: '#b3c0c6',
    edge: '#68727a',
    hatch: '#6d757c',
    unknown: '#9aa2a8',
    selected: '#101820',
    alert: '#a3007a',
    road: '#7d868d',
    green: '#e6eadb',
    built: '#eae7df',
    name: '#39424a',
    waterName: '#2c5a77',
  },
  dark: {
    sea: '#0d1317',
    land: '#1a2127',
    coast: '#3a464e',
    edge: '#84919b',
    hatch: '#8e99a1',
    unknown: '#6d7880',
    selected: '#ffffff',
    alert: '#ff7ad9',
    road: '#8a97a1',
    green: '#1b2824',
    built: '#20282e',
    name: '#e8eef2',
    waterName: '#a9cfe4',
  },
};
