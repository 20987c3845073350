"""Keys of a configuration are changed in place, and nothing else is."""

from __future__ import annotations

import tomllib
from datetime import timedelta

import pytest

from stream.config import ConfigError
from stream.config.rewriting import rewritten, toml
from tests.support import hourly

TEXT = (
    '# mine\n[window]\nslot = "1h" # an hour\n\n[speed]\n# statistics = ["p50"]\nstatistics = '
    '["mean", '
    '"variance"]\n[speed.more]\nslot = 1\n'
)


def test_only_the_named_keys_change_and_comments_stay() -> None:
    changes = {
        "window.slot": timedelta(minutes=90),
        "speed.statistics": ("mean",),
        "speed.clipping": "none",
        "new.key": 0.5,
    }
    text = rewritten(TEXT, changes, "why")
    assert tomllib.loads(text) == {
        "window": {"slot": "90m"},
        "speed": {"statistics": ["mean"], "clipping": "none", "more": {"slot": 1}},
        "new": {"key": 0.5},
    }
    assert 'slot = "90m"  # why; an hour' in text
    assert text.startswith("# mine\n")


def test_both_shipped_configurations_can_be_rewritten() -> None:
    changes = {"hexagons.merge_until": 8.0, "privacy.epsilon": 0.25, "window.slot": timedelta(hours=2)}
    for file in (hourly.BUS, hourly.RIDERS):
        data = tomllib.loads(rewritten(file.read_text(encoding="utf-8"), changes, "why"))
        assert (data["hexagons"]["merge_until"], data["privacy"]["epsilon"], data["window"]["slot"]) == (
            8.0,
            0.25,
            "2h",
        )


@pytest.mark.parametrize(
    "text",
    [
        'speed = { statistics = ["mean"] }\n',
        '[speed]\nstatistics = [\n  "mean",\n]\n',
        '[speed]\n"statistics" = ["p50"]\n',
    ],
    ids=["inline table", "several lines", "quoted key"],
)
def test_what_is_not_written_line_by_line_is_refused_with_the_values(text: str) -> None:
    with pytest.raises(ConfigError, match=r'set by hand: speed.statistics = \["mean", "variance"\]'):
        rewritten(text, {"speed.statistics": ("mean", "variance")}, "why")


def test_durations_are_written_in_their_largest_unit() -> None:
    spans = (timedelta(days=1), timedelta(hours=4), timedelta(minutes=90), timedelta(seconds=45))
    assert [toml(span) for span in spans] == ['"1d"', '"4h"', '"90m"', '"45s"']
