"""Configurations: TOML files, and environment variables that override them."""

from __future__ import annotations

import os
import random
import re
from typing import Self

from bench.fuzzing.hunting import FolderTarget, Hunt
from bench.fuzzing.mutation import NUMBERS, TEXTS, Mutator
from stream.config import Config, ConfigError, load_config
from stream.config.loading import variables
from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.local.kafka import REPO_ROOT

SECRET = "open-sesame"
_REDIS = f'[redis]\nurl = "redis://worker:{SECRET}@127.0.0.1:6379/0"\n'
_VALUES = (
    *(number.decode() for number in NUMBERS), '""', "''", '"x"', "true", "false", "[]", "{}", "[[]]", "[1, 'a', true]",
    '["mean"]', '["mean", "mean"]',
    '"1h"', '"15m"', '"0s"', '"-1h"', '"1e9d"', '"9999999999999d"', '"7s"', '"values"', '"participation"', '"UTC"',
    '"Europe/Atlantis"', '"../../etc"',
    '"\\u0000"', '"\\uD800"', "inf", "-inf", "nan", "0x" + "f" * 6000, "0b1", "1979-05-27", "1979-05-27T07:32:00Z",
    "07:32:00", "'''\n'''",
    '"redis://:x@[::1"', '"https://[bad"', '"127.0.0.1:99999"', '"a:1,b:2"', "{a = 1}", "{south = 0, west = 0, north = "
"1, east = 1}",
    "[" * 2000 + "]" * 2000, "[0x" + "f" * 6000 + "]", '"' + "x" * 5000 + '"', "1e6", "48.0", "0.5", "7", "15", "16",
    "1",
)  # fmt: skip
_LINES = (
    "_env_file = 'a'", "_cli_parse_args = true", "self = 1", "'' = 1", "'a.b' = 1", "a.b.c.d = 1",
    "relation = 'values'", "[feed.fields]", "[[feed]]",
    "[histogram]", "[participation]", "[kafka]", "[speed.x]", "[]", "[a", "epsilon = 1", "x." * 1500 + "y = 1",
    "mechanisms = ['ug', 'htf']",
)  # fmt: skip
_PAIR = re.compile(r"^(\s*[\w.-]+)\s*=\s*(.+?)(\s*#.*)?$")


class Configuration(FolderTarget):
    """The shipped configurations with changed values, keys, lines and bytes."""

    name = "configuration"
    contract = "a configuration that keeps its promises, or a ConfigError that shows no password"

    def __enter__(self) -> Self:
        super().__enter__()
        self._file = self.folder / "hexveil.toml"
        shipped = [REPO_ROOT / "config" / name for name in ("bus-fleet.toml", "riders-live.toml")]
        texts = [re.sub(r"(?m)^\[redis\]\nurl = .*\n", _REDIS, path.read_text(encoding="utf-8")) for path in shipped]
        assert all(_REDIS in text for text in texts)
        self._seeds = [_without_comments(text) for text in texts]
        self._variables = sorted(variables(Config))
        return self

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Thirty files, some of them under a changed environment."""
        mutator = Mutator(rng)
        for _ in range(30):
            text = rng.choice(self._seeds)
            for _ in range(rng.choice((1, 1, 2, 3))):
                text = self._changed(text, rng)
            data = text.encode("utf-8", "surrogatepass")
            if rng.random() < 0.2:
                data = mutator.octets(data)
            name, value = "", ""
            if rng.random() < 0.3:
                name, value = rng.choice(self._variables), rng.choice((*TEXTS, *_VALUES)).replace("\0", "")
                value = value.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
            hunt.attempt(data, lambda text, name=name, value=value: self._check(text, name, value))  # type: ignore[misc]

    @staticmethod
    def _changed(text: str, rng: random.Random) -> str:
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        pair, change = _PAIR.match(lines[at]), rng.random()
        if pair and change < 0.6:
            lines[at] = f"{pair[1]} = {rng.choice(_VALUES)}"
        elif pair and change < 0.7:
            other = _PAIR.match(rng.choice(lines))
            lines[at] = f"{other[1] if other else 'x'} = {pair[2]}"
        elif change < 0.8:
            lines.insert(at, rng.choice(_LINES))
        elif change < 0.9:
            del lines[at]
        else:
            lines.insert(at, rng.choice(lines))
        return "\n".join(lines)

    def _check(self, data: bytes, name: str, value: str) -> None:
        self._file.write_bytes(data)
        if name:
            os.environ[name] = value
        try:
            config = load_config(self._file)
        except ConfigError as error:
            shown = str(error)
            assert shown
            assert len(shown) < 50_000
            if _REDIS.encode() in data and (not name or SECRET not in value):
                assert SECRET not in shown, "an error shows the password"
            return
        finally:
            os.environ.pop(name, None)
        assert 0 < config.window_grant <= config.privacy.ledger_budget < 2**63
        assert config.window.slot.total_seconds() > 0
        Decoder(config, bytes(KEY_BYTES)).decode([b"{}"], 1_700_000_000_000_000)


def _without_comments(text: str) -> str:
    kept = [line.split("  #")[0].rstrip() for line in text.split("\n") if not line.lstrip().startswith("#")]
    return "\n".join(line for line in kept if line) + "\n"
