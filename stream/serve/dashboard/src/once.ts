/** A function that finds the value of a key once and keeps it; with `most` values, it begins anew. */
export function once<Key, Value>(find: (key: Key) => Value, most = Infinity): (key: Key) => Value {
  const kept = new Map<Key, Value>();
  return (key) => {
    const known = kept.get(key);
    if (known !== undefined) return known;
    if (kept.size >= most) kept.clear();
    const found = find(key);
    kept.set(key, found);
    return found;
  };
}
