/** What the reader chose, for later visits; where the browser stores nothing, as in a frame of another site, until the page is closed. */

const kept = new Map<string, string>();

export function recall(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return kept.get(key) ?? null;
  }
}

export function keep(key: string, value: string): void {
  kept.set(key, value);
  try {
    localStorage.setItem(key, value);
  } catch {
    // `kept` has it.
  }
}
