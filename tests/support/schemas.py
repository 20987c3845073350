"""Whether messages are what their schemas say, by the validator in Rust, which takes a hundredth of the time of that in
Python.

``tests/stream/statistics/test_pipeline.py`` asks both.
"""

from functools import cache
from typing import Any

import jsonschema_rs

from stream.messages.message import schema


@cache
def validator(topic: str) -> jsonschema_rs.Draft202012Validator:
    """Of the values of ``topic``, formats included."""
    return jsonschema_rs.Draft202012Validator(schema(topic), validate_formats=True)


def validate(topic: str, body: Any) -> None:
    """Raise :class:`jsonschema_rs.ValidationError` unless ``body`` is a value of ``topic``."""
    validator(topic).validate(body)
