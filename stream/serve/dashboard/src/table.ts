/** The cells of the window as a table: what the map shows, for keyboard and screen reader. */

import { byId, cellName, chip, make } from './dom';
import { countOf, countText, interval, isNobody, isNoisy, margin, reading as read, relative, speed, type Verdict } from './statistics';
import { say } from './texts';
import { unit } from './units';
import type { Reading, View } from './view';
import { hours } from './times';

const PAGE = 100;

type Column = 'cell' | 'value' | 'interval' | 'then' | 'against' | 'events' | 'users';

const number = (count: Reading['hexagon']['users']) => (isNoisy(count) ? count.value : count);

const ORDER: Record<Exclude<Column, 'cell'>, (reading: Reading) => number | string> = {
  value: ({ now }) => now?.value ?? -1,
  interval: ({ now }) => (now && !now.unbounded ? now.high - now.low : Infinity),
  then: ({ then }) => (then && typeof then !== 'string' ? then.value : -1),
  against: ({ verdict }) => (verdict ? (verdict.clear ? verdict.now.value / verdict.reference : 1) : Infinity),
  events: ({ hexagon }) => number(countOf(hexagon)),
  users: ({ hexagon }) => number(hexagon.users),
};

export class Table {
  private sort: Column = 'events';
  private descending = true;
  private page = 0;
  private opener: HTMLElement | null = null;

  constructor(
    private readonly view: View,
    private readonly choose: (cell: string) => void,
  ) {
    byId('table-button').addEventListener('click', () => (this.open ? this.close() : this.show()));
    byId('table-close').addEventListener('click', () => this.close());
    byId('table-panel').addEventListener('keydown', (event) => this.onKey(event));
  }

  get open(): boolean {
    return !byId('table-panel').hidden;
  }

  show(): void {
    this.opener = document.activeElement as HTMLElement | null;
    byId('table-panel').hidden = false;
    byId('table-button').setAttribute('aria-expanded', 'true');
    document.body.classList.add('with-table');
    this.render();
    (this.buttons()[0] ?? byId('table-close')).focus();
  }

  close(): void {
    byId('table-panel').hidden = true;
    byId('table-button').setAttribute('aria-expanded', 'false');
    document.body.classList.remove('with-table');
    (this.opener?.isConnected ? this.opener : byId('table-button')).focus();
  }

  private buttons(): HTMLButtonElement[] {
    return [...byId('table-scroll').querySelectorAll<HTMLButtonElement>('tbody button')];
  }

  /** Arrow keys move among the rows; one row at a time takes part in the tab order. */
  private onKey(event: KeyboardEvent): void {
    if (event.key === 'Escape') return this.close();
    const buttons = this.buttons();
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    if (at < 0) return;
    const last = buttons.length - 1;
    const to = { ArrowDown: Math.min(at + 1, last), ArrowUp: Math.max(at - 1, 0), Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    buttons[at]!.tabIndex = -1;
    buttons[to]!.tabIndex = 0;
    buttons[to]!.focus();
  }

  render(): void {
    if (!this.open) return;
    const readings = [...this.view.cells.values()].map((hexagon) => this.view.read(hexagon));
    const { names } = this.view;
    const byName = ({ hexagon }: Reading) => names?.of(hexagon.cell) ?? hexagon.cell;
    const order = this.sort === 'cell' ? byName : ORDER[this.sort];
    const sign = this.descending ? -1 : 1;
    readings.sort((a, b) => {
      const [x, y] = [order(a), order(b)];
      return x === y ? 0 : x < y ? -sign : sign;
    });
    const pages = Math.max(Math.ceil(readings.length / PAGE), 1);
    this.page = Math.min(this.page, pages - 1);
    const rows = readings.slice(this.page * PAGE, (this.page + 1) * PAGE);
    const refocus = this.focus();
    byId('table-title').textContent = this.view.window
      ? say('table.title', {
          count: readings.length,
          hours: hours(this.view.window.window, this.view.zone),
          kind: say(`chip.${this.view.mark}`),
        })
      : say('empty.title');
    byId('table-scroll').replaceChildren(this.table(rows, readings));
    byId('table-pager').replaceChildren(...(pages > 1 ? this.pager(pages) : []));
    refocus();
  }

  /** What puts the focus back where it is now, once everything is replaced: to the same cell, column or page button. */
  private focus(): () => void {
    const focused = document.activeElement as HTMLElement;
    const { cell, column, step } = focused.dataset;
    if (![byId('table-scroll'), byId('table-pager')].some((part) => part !== focused && part.contains(focused))) return () => undefined;
    const all = () => [...byId('table-panel').querySelectorAll<HTMLButtonElement>('button:enabled')];
    const isSame = ({ dataset }: HTMLElement) => (cell ? dataset.cell === cell : column ? dataset.column === column : dataset.step === step);
    return () => (all().find(isSame) ?? all().find(({ dataset }) => step && dataset.step) ?? this.buttons()[0] ?? byId('table-close')).focus();
  }

  private table(readings: Reading[], all: Reading[]): HTMLTableElement {
    const day = this.view.dayName;
    const heads: [Column, string][] = [
      ['cell', say(this.view.names ? 'search.place' : 'table.cell')],
      ['value', `${say(`${this.view.statistic}.name`)}, ${unit()}`],
      ['interval', say('table.interval')],
      ...(day ? ([['then', day], ['against', say('table.difference', { unit: unit() })]] as [Column, string][]) : ([['against', say(this.view.scheme === 'scheduled' ? 'table.scheduled' : 'table.typical')]] as [Column, string][])),
      ['events', say('table.events')],
      ['users', say('table.users')],
    ];
    const head = make('tr', {}, ...heads.map(([column, label]) => this.head(column, label)));
    const selectedHere = readings.some(({ hexagon }) => hexagon.cell === this.view.selected);
    const body = readings.map((reading, index) => {
      const selected = reading.hexagon.cell === this.view.selected;
      return this.row(reading, selected, selectedHere ? selected : index === 0);
    });
    return make('table', { 'aria-labelledby': 'table-title' }, make('thead', {}, head), make('tbody', {}, ...body), this.foot(heads.length - 2, all.length, all.some(({ hexagon }) => hexagon.weight === 'share')));
  }

  /** Sums over all cells, also of the other pages. Clamped values must not be added, so readers find the sum here. */
  private foot(columns: number, count: number, divided: boolean): HTMLElement {
    const totals = this.view.window?.totals;
    const sums = (['events', 'users'] as const).map((name) => make('td', { class: 'number' }, countText(totals?.[name] ?? undefined)));
    const label = [say('table.total', { count }), !divided && make('span', {}, say('table.total-users'))];
    return make('tfoot', {}, make('tr', {}, make('th', { scope: 'row', colspan: columns }, ...label), ...sums));
  }

  private head(column: Column, label: string): HTMLElement {
    const sorted = column === this.sort;
    const click = () => {
      this.descending = column === this.sort ? !this.descending : column === 'events' || column === 'users';
      this.sort = column;
      this.page = 0;
      this.render();
    };
    const button = make('button', { type: 'button', 'data-column': column, click }, label, sorted && (this.descending ? ' ▾' : ' ▴'));
    const order = this.descending ? 'descending' : 'ascending';
    return make('th', { scope: 'col', ...(sorted ? { 'aria-sort': order } : {}) }, button);
  }

  private row(reading: Reading, selected: boolean, tabbed: boolean): HTMLElement {
    const { hexagon, now, then, verdict } = reading;
    const button = make('button', { type: 'button', 'data-cell': hexagon.cell, tabindex: tabbed ? 0 : -1, click: () => this.choose(hexagon.cell) },
      ...(this.view.names ? cellName(this.view, hexagon.cell) : [hexagon.cell]));
    const value = now
      ? [make('td', { class: 'number' }, read(now), now.method && chip('modelled')),
         make('td', { class: 'number' }, interval(now))]
      : [make('td', { colspan: 2, class: 'none' }, say(isNobody(hexagon) ? 'table.nobody' : 'table.not-published'))];
    return make(
      'tr',
      selected ? { 'aria-current': 'true' } : {},
      make('th', { scope: 'row' }, button),
      ...value,
      this.view.dayName !== undefined && (then && typeof then !== 'string'
        ? make('td', { class: 'number' }, speed(then.value, then), now?.method && chip('raw'))
        : make('td', { class: 'none' }, then && then !== 'window' ? say(`table.day.${then}`) : '–')),
      make('td', {}, verdict ? this.against(verdict) : '–'),
      make('td', { class: 'number' }, countText(hexagon.events)),
      make('td', { class: 'number' }, countText(hexagon.users)),
    );
  }

  /** "8 % slower than typical", or of another day "−2.0 ± 0.9"; where noise explains the difference, that. */
  private against(verdict: Verdict): string {
    const { clear } = verdict;
    if (this.view.dayName === undefined) return clear ? relative(verdict, this.view.versus) : say('table.within');
    return say(clear ? 'table.margin' : 'table.margin-within', margin(verdict));
  }

  private pager(pages: number): HTMLElement[] {
    const step = (label: string, by: number) => {
      const target = this.page + by;
      const click = () => {
        this.page = target;
        this.render();
        byId('table-scroll').scrollTop = 0;
      };
      return make('button', { type: 'button', 'data-step': by, disabled: target < 0 || target >= pages, click }, label);
    };
    return [step(say('table.previous'), -1), make('span', {}, say('table.page', { page: this.page + 1, pages })), step(say('table.next'), 1)];
  }
}
