/** A spatial histogram as a heat map: boxes coloured by how many users there are on a square kilometre. */

import type { ExpressionSpecification, LayerSpecification } from 'maplibre-gl';
import { make, row } from './dom';
import { decimals, say } from './texts';
import { YL_OR_RD } from './palette';
import type { HeatFeatures as Heat } from './types';

export const HEAT = 'heat';
/** Classes double or triple, because densities of cities span orders of magnitude. */
const STEPS = [1, 2, 5];

/** Lower ends of the classes, of which the last holds the largest density. */
export function heatBreaks({ features }: Heat): number[] {
  const most = features.reduce((max, { properties }) => Math.max(max, properties.density), 0);
  if (most <= 0) return [];
  const ends = Array.from({ length: 60 }, (_, at) => STEPS[at % 3]! * 10 ** (Math.floor(at / 3) - 10)).filter((end) => end <= most);
  return ends.slice(-YL_OR_RD.length);
}

/** Fainter where the interval reaches 0, so that nobody may be there. */
export function heatLayer(heat: Heat): LayerSpecification {
  const breaks = heatBreaks(heat);
  const steps = breaks.flatMap((end, at) => [end, YL_OR_RD[YL_OR_RD.length - breaks.length + at]!]);
  const colour = ['step', ['get', 'density'], 'rgba(0, 0, 0, 0)', ...steps] as unknown as ExpressionSpecification;
  const opacity: ExpressionSpecification = ['case', ['>', ['coalesce', ['get', 'low'], 0], 0], 0.85, 0.45];
  return { id: HEAT, type: 'fill', source: HEAT, paint: { 'fill-color': breaks.length ? colour : 'rgba(0, 0, 0, 0)', 'fill-opacity': opacity, 'fill-antialias': false } };
}

/** What the colours mean, for the card of choices. */
export function heatLegend(heat: Heat): HTMLElement[] {
  const breaks = heatBreaks(heat);
  const written = (end: number) => decimals(end, Math.max(0, -Math.floor(Math.log10(end))));
  const rows = breaks.map((end, at) =>
    row(at + 1 < breaks.length ? `${written(end)}–${written(breaks[at + 1]!)}` : `≥ ${written(end)}`, YL_OR_RD[YL_OR_RD.length - breaks.length + at]!));
  return [make('h3', {}, say('heat.unit')), make('ul', {}, ...rows), make('p', { class: 'note' }, say('heat.note'))];
}
