/** The part of the map that no card covers. */

import { byId } from './dom';

/** Pixels that the buttons for the zoom take at the right. */
const BUTTONS = 48;
const NARROW = 720;

/** Pixels that cards cover at each side of the map, with some air; the air alone where they leave nearly nothing. */
export function covered() {
  const frame = byId('map').getBoundingClientRect();
  const air = frame.width < NARROW ? 12 : 28;
  const plain = { left: air, right: BUTTONS, top: air, bottom: air };
  const sides = { ...plain };
  const widen = (side: keyof typeof plain, pixels: number) => (sides[side] = Math.max(sides[side], pixels + air));
  for (const card of [byId('controls'), byId('details')].filter((element) => element.checkVisibility())) {
    const { left, right, top, bottom, width } = card.getBoundingClientRect();
    if (width <= frame.width / 2) left - frame.left < frame.right - right ? widen('left', right - frame.left) : widen('right', frame.right - left);
    else if (top - frame.top < frame.bottom - bottom) widen('top', bottom - frame.top);
    // It grows to this when the past of the cell has arrived.
    else widen('bottom', (frame.height * parseFloat(getComputedStyle(card).maxHeight)) / 100 + frame.bottom - bottom);
  }
  const isRoom = sides.left + sides.right < 0.9 * frame.width && sides.top + sides.bottom < 0.9 * frame.height;
  return isRoom ? sides : plain;
}
