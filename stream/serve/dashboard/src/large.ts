/** Large letters for a screen on the wall: chosen by a button or key, and by the address, so that a kiosk starts with it. */

import { byId } from './dom';

const root = document.documentElement;

export const isLarge = () => root.dataset.large === 'true';

/** `then` is called after every change. */
export function setUpLarge(on: boolean, then: () => void): void {
  const apply = (large: boolean) => {
    root.dataset.large = String(large);
    byId('large-button').setAttribute('aria-pressed', String(large));
  };
  apply(on);
  byId('large-button').addEventListener('click', () => {
    apply(!isLarge());
    then();
  });
}
