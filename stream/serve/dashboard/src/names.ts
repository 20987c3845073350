/** Names of cells, by the operator's places: where a cell has none, what lies in it, or next to it. Pure. */

import { cellToParent, getResolution, gridDisk } from 'h3-js';
import { once } from './once';
import { say } from './texts';
import type { PlaceCell, PlaceList } from './types';

const FEW = 3;

/** The named place with the most stops. */
function busiest(places: (PlaceCell | undefined)[]): PlaceCell | undefined {
  const named = places.filter((place): place is PlaceCell => Boolean(place?.name));
  return named.reduce<PlaceCell | undefined>((best, place) => (best && best.stops >= place.stops ? best : place), undefined);
}

/** What a cell is called: by names in a text of that key, or by its own name alone. */
export interface Called {
  key: 'place.around' | 'place.near' | 'place.routes' | null;
  names: string[];
  /** Whether there are more names than these. */
  more?: boolean;
}

export class Names {
  private readonly places: Map<string, PlaceCell>;
  /** Places by the larger cell that covers them, for merged cells of each resolution. */
  private readonly covered = once((resolution: number) => {
    const covered = new Map<string, PlaceCell[]>();
    for (const place of this.list.cells) {
      const parent = cellToParent(place.cell, resolution);
      covered.set(parent, [...(covered.get(parent) ?? []), place]);
    }
    return covered;
  });

  constructor(readonly list: PlaceList) {
    this.places = new Map(list.cells.map((place) => [place.cell, place]));
  }

  /** "Congress / 6th", "around Congress / 6th" of a merged cell, "near Congress / 6th", "on routes 1, 10"; null where nothing is known. */
  of(cell: string): string | null {
    const called = this.called(cell);
    if (!called) return null;
    const said = called.names.join(', ') + (called.more ? ' …' : '');
    return called.key ? say(called.key, { name: said, routes: said }) : said;
  }

  /** The same in parts, so that each name can be shown in its own direction. */
  readonly called = once((cell: string) => this.find(cell));

  routes(cell: string): string[] {
    return [...new Set(this.within(cell).flatMap((place) => place.routes))];
  }

  private find(cell: string): Called | null {
    const within = this.within(cell);
    const own = busiest(within);
    if (own) return { key: own.cell === cell ? null : this.isMerged(cell) ? 'place.around' : 'place.near', names: [own.name!] };
    const beside = this.isMerged(cell) ? undefined : busiest(gridDisk(this.same(cell), 1).map((other) => this.places.get(other)));
    if (beside) return { key: 'place.near', names: [beside.name!] };
    const routes = this.routes(cell);
    return routes.length ? { key: 'place.routes', names: routes.slice(0, FEW), more: routes.length > FEW } : null;
  }

  private isMerged = (cell: string) => getResolution(cell) < (this.list.resolution ?? 0);

  /** The cell of the places' resolution in which a cell lies. */
  private same = (cell: string) => cellToParent(cell, Math.min(this.list.resolution ?? 0, getResolution(cell)));

  /** Places in a larger cell, or the one in which a cell of the same size or a smaller one lies. */
  private within(cell: string): PlaceCell[] {
    if (!this.isMerged(cell)) return [this.places.get(this.same(cell))].filter((place) => place !== undefined);
    return this.covered(getResolution(cell)).get(cell) ?? [];
  }
}
