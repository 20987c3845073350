/** The alerts of the window on display: what the operator's rules name, with their bound on false alarms. */

import { byId, cellName, make } from './dom';
import { decimals, plain, say } from './texts';
import { inUnit, unit } from './units';
import type { Alert, AlertRule } from './types';
import type { View } from './view';

/** The choice of a cell in the list. */
export type Choose = (cell: string) => void;

/** "jam: mean below 15.0 km/h". */
function claim(rule: AlertRule): string {
  if (rule.slower_percent !== null) return say('alerts.percent', { rule: rule.name, limit: plain(rule.slower_percent, 4) });
  const kind = rule.below !== null ? 'alerts.below' : rule.above !== null ? 'alerts.above' : 'alerts.slower';
  return say(kind, { rule: rule.name, limit: decimals(inUnit(rule.below ?? rule.above ?? rule.slower_km_h ?? 0), 1), unit: unit() });
}

/** What is released lies on the claimed side of the limit. */
const told = ({ value, limit }: Alert) => say(value > limit ? 'alerts.cell.above' : 'alerts.cell', { value: decimals(inUnit(value), 1), limit: decimals(inUnit(limit), 1), unit: unit() });

export function showAlerts(view: View, choose: Choose): void {
  const { alerts } = view.beside;
  byId('alerts').hidden = !view.own.alerting;
  byId('alerts-count').textContent = alerts?.alerts.length ? String(alerts.alerts.length) : '';
  const list = byId('alerts-list');
  const focused = document.activeElement;
  const alert = focused instanceof HTMLElement && list.contains(focused) ? focused.dataset.alert : undefined;
  list.replaceChildren(...(alerts ? alerts.rules.flatMap((rule) => section(view, rule, alerts.alerts, choose)) : [make('p', { class: 'quiet' }, say('alerts.failed', { reason: view.beside.refused }))]));
  const again = [...list.querySelectorAll('button')].find(({ dataset }) => dataset.alert === alert);
  if (alert) (again ?? byId('alerts-button')).focus();
}

function section(view: View, rule: AlertRule, all: Alert[], choose: Choose): HTMLElement[] {
  const named = all.filter((alert) => alert.rule === rule.name);
  const promise = `${say('alerts.windows', { count: rule.windows })} ${say('alerts.rate', { rate: plain(rule.false_alarms_per_day, 4), count: rule.cells })}`;
  const none = make('p', {}, say('alerts.none'));
  const list = make('ul', {}, ...named.map((alert) => make('li', {}, item(view, alert, choose))));
  return [make('h2', {}, claim(rule)), make('p', { class: 'quiet' }, promise), named.length ? list : none];
}

const item = (view: View, alert: Alert, choose: Choose) =>
  make('button', { type: 'button', 'data-alert': `${alert.rule} ${alert.cell}`, click: () => choose(alert.cell) },
    ...cellName(view, alert.cell), ` ${told(alert)} `, alert.new && make('span', { class: 'chip' }, say('alerts.new')));

/** What the rules say of one cell. */
export function alertsOf(view: View, cell: string): HTMLElement[] {
  const { rules = [], alerts = [] } = view.beside.alerts ?? {};
  return alerts
    .filter((alert) => alert.cell === cell)
    .map((alert) => make('p', { class: 'alert' }, `${claim(rules.find((rule) => rule.name === alert.rule)!)}. ${told(alert)}`));
}
