/** Names of cells, by the operator's places: where a cell has none, what lies in it, or next to it. Pure. */

import { cellToParent, getResolution, gridDisk } from 'h3-js';
import { say } from './texts';
import type { PlaceCell, PlaceList } from './types';

const FEW = 3;

/** The named place with the most stops. */
function busiest(places: (PlaceCell | undefined)[]): PlaceCell | undefined {
  const named = places.filter((place): place is PlaceCell => Boolean(place?.name));
  return named.reduce<PlaceCell | undefined>((best, place) => (best && best.stops >= place.stops ? best : place), undefined);
}

export class Names {
  private readonly places: Map<string, PlaceCell>;
  /** Places by the larger cell that covers them, for merged cells of each resolution. */
  private readonly covered = new Map<number, Map<string, PlaceCell[]>>();
  private readonly known = new Map<string, string | null>();

  constructor(readonly list: PlaceList) {
    this.places = new Map(list.cells.map((place) => [place.cell, place]));
  }

  /** "Congress / 6th", "around Congress / 6th" of a merged cell, "near Congress / 6th", "on routes 1, 10"; null where nothing is known. */
  of(cell: string): string | null {
    let name = this.known.get(cell);
    if (name === undefined) this.known.set(cell, (name = this.find(cell)));
    return name;
  }

  routes(cell: string): string[] {
    return [...new Set(this.within(cell).flatMap((place) => place.routes))];
  }

  private find(cell: string): string | null {
    const within = this.within(cell);
    const own = busiest(within);
    if (own) return own.cell === cell ? own.name : say(this.isMerged(cell) ? 'place.around' : 'place.near', { name: own.name! });
    const beside = this.isMerged(cell) ? undefined : busiest(gridDisk(this.same(cell), 1).map((other) => this.places.get(other)));
    if (beside) return say('place.near', { name: beside.name! });
    const routes = this.routes(cell);
    return routes.length ? say('place.routes', { routes: routes.slice(0, FEW).join(', ') + (routes.length > FEW ? ' …' : '') }) : null;
  }

  private isMerged = (cell: string) => getResolution(cell) < (this.list.resolution ?? 0);

  /** The cell of the places' resolution in which a cell lies. */
  private same = (cell: string) => cellToParent(cell, Math.min(this.list.resolution ?? 0, getResolution(cell)));

  /** Places in a larger cell, or the one in which a cell of the same size or a smaller one lies. */
  private within(cell: string): PlaceCell[] {
    if (!this.isMerged(cell)) return [this.places.get(this.same(cell))].filter((place) => place !== undefined);
    const resolution = getResolution(cell);
    let covered = this.covered.get(resolution);
    if (!covered) {
      covered = new Map();
      for (const place of this.list.cells) {
        const parent = cellToParent(place.cell, resolution);
        covered.set(parent, [...(covered.get(parent) ?? []), place]);
      }
      this.covered.set(resolution, covered);
    }
    return covered.get(cell) ?? [];
  }
}
