"""Values with one part changed, for tests of schemas."""

from collections.abc import Iterator


def mutations(value: object) -> Iterator[object]:
    """Every value with one part removed, replaced or added."""
    yield from (None, "x", -1, 1e308, [], {"x": 1})
    if isinstance(value, dict):
        yield value | {"extra": 1}
        for name in value:
            yield {key: part for key, part in value.items() if key != name}
            yield from (value | {name: changed} for changed in mutations(value[name]))
    elif isinstance(value, list):
        for place in range(len(value)):
            yield from ([*value[:place], changed, *value[place + 1 :]] for changed in mutations(value[place]))
