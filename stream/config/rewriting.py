"""Changes keys in the text of a configuration and leaves every other line and its comments as they are. Pure."""

import json
import re
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from stream.config.deployment import ConfigError
from stream.config.section import duration_text

_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|\[[^\]\n]*\]|\{[^}\n]*\}|[^#\s]+)"


def rewritten(text: str, changes: Mapping[str, Any], reason: str) -> str:
    """``text`` (TOML) with other values at dotted keys (``"privacy.epsilon"``); ``reason`` becomes their comment.

    A key that is missing is added at the head of its section, a missing section at the end of the file; a key whose
    new value is None is taken out. Raises
    :class:`ConfigError` if the text is written in a way in which that cannot be done line by line.
    """
    expected = tomllib.loads(text)
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        table = expected
        for part in section.split("."):
            table = table.setdefault(part, {})
        if value is None:
            text = text if table.pop(name, None) is None else _without_line(text, section, name)
            continue
        text = _with_line(text, section, name, f"{name} = {toml(value)}", reason)
        table[name] = tomllib.loads(f"value = {toml(value)}")["value"]
    try:
        same = tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        lines = "; ".join(f"{key} = {toml(value)}" for key, value in changes.items())
        raise ConfigError(f"the configuration is not written one key a line below its section; set by hand: {lines}")
    return text


def toml(value: Any) -> str:
    """A string, number, duration or list of these as TOML."""
    if isinstance(value, timedelta):
        return f'"{duration_text(value)}"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)  # numbers and basic strings of TOML are written as in JSON


def _with_line(text: str, section: str, name: str, line: str, reason: str) -> str:
    header, match = _place(text, section, name)
    if header is None:
        return f"{text.rstrip()}\n\n[{section}]\n{line}  # {reason}\n"
    if match is None:
        return f"{text[: header.end()]}\n{line}  # {reason}{text[header.end() :]}"
    comment = f"  # {reason}" + (f"; {match[1][1:].strip()}" if match[1] else "")
    return text[: match.start()] + line + comment + text[match.end() :]


def _without_line(text: str, section: str, name: str) -> str:
    match = _place(text, section, name)[1]
    return text if match is None else text[: match.start()] + text[match.end() + 1 :]


def _place(text: str, section: str, name: str) -> tuple[re.Match[str] | None, re.Match[str] | None]:
    header = re.search(rf"^\[{re.escape(section)}\][ \t]*(?:#.*)?$", text, re.MULTILINE)
    if header is None:
        return None, None
    following = re.compile(r"^\[", re.MULTILINE).search(text, header.end())
    end = len(text) if following is None else following.start()
    present = re.compile(rf"^{re.escape(name)}[ \t]*=[ \t]*{_VALUE}[ \t]*(#.*)?$", re.MULTILINE)
    return header, present.search(text, header.end(), end)
