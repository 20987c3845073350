/** How long the page took, for measurements from outside. The newest of each kind alone is kept: a page stays open for days. */

export function begin(mark: 'asked' | 'changed'): void {
  performance.clearMarks(mark);
  performance.mark(mark);
}

export function took(what: 'fetch' | 'update' | 'change', since: 'asked' | 'changed'): void {
  performance.clearMeasures(`hexveil:${what}`);
  performance.measure(`hexveil:${what}`, since);
}
