"""What the dashboard says: one file of texts for each language, and nothing said elsewhere."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stream.local import REPO_ROOT
from stream.serve.static_files import LIMITS

SOURCES = REPO_ROOT / "stream" / "serve" / "dashboard"
TEXTS = SOURCES / "src" / "texts"
LANGUAGES = sorted(path.stem for path in TEXTS.glob("*.json"))
PUT_TOGETHER = re.compile(
    r".+\.value|(mean|moving|p50|p85|spread)\.(short|name|title)|chip\..+|kind\..+|legend\.(modelled|raw|typical|difference)|legend\.against\..+|download\.(from|to)|area\.(box|polygon|refused\..+)"
    r"|comparison\.((day|scheduled)\.)?(same|slower|faster|within)|day\.(no|cell)\..+|table\.day\..+"
    r"|(reason|about\.relation|about\.noise|about\.speeds)\..+|limit\..+|(empty|gone|withheld|unknown)\.(title|text)"
    r"|route\.(minutes|speed|now|typical|mean|scheduled|(from|to)(-end)?)|over\.(any|workday|saturday|sunday|weekend)"
    r"|.+\.value"
)
"""Keys that the source puts together from parts."""


def texts_of(language: str) -> dict[str, Any]:
    texts: dict[str, Any] = json.loads((TEXTS / f"{language}.json").read_text(encoding="utf-8"))
    return texts


def forms(text: str | dict[str, str]) -> list[str]:
    return [text] if isinstance(text, str) else list(text.values())


def placeholders(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


ENGLISH = texts_of("en")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_the_same_texts_with_the_same_placeholders(language: str) -> None:
    texts = texts_of(language)
    assert list(texts) == list(ENGLISH)
    for key, text in texts.items():
        for form in forms(text):
            assert form.strip(), key
            assert placeholders(form) == placeholders(forms(ENGLISH[key])[0]), f"{language}: {key}"


PLURALS = {"en": {"one", "other"}, "pl": {"one", "few", "many", "other"}}
"""Forms of a text with a number; languages that are not named have those of English."""


def test_the_languages_are_those_that_the_page_offers_with_every_plural_form() -> None:
    source = (SOURCES / "src" / "texts.ts").read_text(encoding="utf-8")
    assert (
        LANGUAGES
        == sorted(re.findall(r"^  (\w\w): (?:async )?\(\)", source, re.MULTILINE))
        == ["de", "en", "es", "fr", "pl"]
    )
    for language in LANGUAGES:
        for key, text in texts_of(language).items():
            if not isinstance(text, str):
                assert set(text) == PLURALS.get(language, PLURALS["en"]), f"{language}: {key}"


PHYSICAL = re.compile(
    r"(?<![\w-])(left|right):|(margin|padding|border)-(left|right)|text-align: (left|right)|float: (left|right)"
)
CENTRED = ("#empty {", "#notice {", "#tooltip {", "  content: ''; position: absolute; left: 50%", ".segments legend")
"""Rules in which a side of the screen is meant, or both are the same."""


def test_the_layout_names_no_side_so_that_it_can_run_from_right_to_left() -> None:
    lines = (SOURCES / "src" / "style.css").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if PHYSICAL.search(line) and not line.startswith(CENTRED)]


def test_every_text_is_used_and_no_source_writes_sentences_itself() -> None:
    files = [SOURCES / "index.html", *(SOURCES / "src").glob("*.ts")]
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    whole = [key for key in ENGLISH if not PUT_TOGETHER.fullmatch(key)]
    unused = [key for key in whole if f"'{key}'" not in source and f'"{key}"' not in source]
    assert not unused
    page = (SOURCES / "index.html").read_text(encoding="utf-8").partition("<noscript>")[0]
    assert set(re.findall(r">\s*([A-Za-z][^<]*?)\s*<", page)) == {"Hexveil", "km/h", "mph"}
    assert "aria-label=" not in page


def test_the_limits_that_the_server_names_have_texts_and_are_among_the_known_limits() -> None:
    known = (REPO_ROOT / "docs" / "known-limits.md").read_text(encoding="utf-8").replace("\n  ", " ").casefold()
    named = {f"limit.{limit['name']}.{part}" for limit in LIMITS for part in ("title", "text")}
    assert named == {key for key in ENGLISH if key.startswith("limit.")}
    for limit in LIMITS:
        words = ENGLISH[f"limit.{limit['name']}.title"].rstrip(".").casefold()
        assert words in known, words
