"""Whether messages are what their schemas say, by the validator in Rust, which takes a hundredth of the time of that in
Python. Values with one part changed, for tests of schemas.

``tests/stream/statistics/test_pipeline.py`` asks both.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema_rs

from stream.messages.message import schema


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


@cache
def validator(topic: str) -> jsonschema_rs.Draft202012Validator:
    """Of the values of ``topic``, formats included."""
    return jsonschema_rs.Draft202012Validator(schema(topic), validate_formats=True)


def validate(topic: str, body: Any) -> None:
    """Raise :class:`jsonschema_rs.ValidationError` unless ``body`` is a value of ``topic``."""
    validator(topic).validate(body)
