"""``hexveil check --sheet``: the promise of a configuration on one page, to be read, printed and signed."""

import hashlib
import html
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dpcore import __version__
from dpcore.participation import UNIT
from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.config.promise import COMPARATORS, NAMES, bounds, factor, one_day_among_others, percent, posterior
from stream.messages.topics import kept

Table = Sequence[Sequence[str]]
"""Rows of cells; the first row is the head."""

_RELATION = {
    NeighbouringRelation.VALUES: (
        "Two worlds differ in the measured speeds of one user and in nothing else.",
        "who reported, where, when and how often; from positions anybody can compute rough speeds",
        "the speeds that a user's device measured",
    ),
    NeighbouringRelation.PARTICIPATION: (
        "Two worlds are alike, but in one of them a user's data are absent.",
        "the list of hexagons, when windows are published, all settings",
        "whether a user was there at all, where, when, how often and how fast",
    ),
}
_STYLE = (
    "body{font:10pt/1.35 system-ui,sans-serif;max-width:52em;margin:1.5em auto;padding:0 "
    "1em;color:#111;background:#fff}h1{font-size:15pt;margin:0}h2{font-size:11pt;margin:.9em 0 .2em}p{margin:.2em "
    "0}table{border-collapse:collapse;width:100%;margin:.3em 0}td,th{border:1px solid #999;padding:.15em "
    ".4em;text-align:left;vertical-align:top}th{background:#eee}@media print{body{font:7.5pt/1.2 "
    "system-ui,sans-serif;margin:0;max-width:none}h1{font-size:12pt}h2{font-size:9pt;margin:.6em 0 "
    ".1em}@page{size:A4;margin:10mm}}"
)


class Section(NamedTuple):
    """One part of the page: sentences, and a table below them."""

    title: str
    sentences: Sequence[str]
    table: Table = ()


def fingerprint(config: Config) -> str:
    """SHA-256 of every setting that a release depends on, in one order; servers and files of keys are left out."""
    apart = {"kafka", "redis", "operator", "public", "signing"}
    settings = config.model_dump_json(exclude={**dict.fromkeys(apart, True), "privacy": {"user_key_file"}})
    return hashlib.sha256(settings.encode()).hexdigest()


def as_markdown(config: Config) -> str:
    """The page in Markdown."""
    lines = [f"# {_title(config)}", ""]
    for section in _sections(config):
        lines += [f"## {section.title}", "", *(f"{sentence}\n" for sentence in section.sentences)]
        if section.table:
            head, *rows = section.table
            lines += [_row(head), _row(["---"] * len(head)), *map(_row, rows), ""]
    return "\n".join(lines)


def as_html(config: Config) -> str:
    """The page in HTML, complete in itself."""
    title = html.escape(_title(config))
    body = "\n".join(_html_of(section) for section in _sections(config))
    return (
        '<!doctype html>\n<html lang="en"><head><meta '
        f'charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _html_of(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>", *(f"<p>{_inline(text)}</p>" for text in section.sentences)]
    if section.table:
        head, *rows = section.table
        parts.append("<table><tr>" + "".join(f"<th>{_inline(cell)}</th>" for cell in head) + "</tr>")
        parts += ["<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rows]
        parts.append("</table>")
    return "\n".join(parts)


def _inline(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(text))


def _title(config: Config) -> str:
    return f"What the releases of feed “{config.feed.name}” may reveal"


def _sections(config: Config) -> Iterator[Section]:
    differ, public, protected = _RELATION[config.relation]
    yield Section(
        "The promise",
        [
            f"{differ} Whatever is published is at most so many times likelier in one than in the other, and so is "
            "every conclusion from it.",
            "This is all that is promised. What the crowd shows about everybody is not hidden: if a jam slows every "
            "vehicle, it also tells that this one was slow.",
            f"**Protected:** {protected}. **Public:** {public}. **One user** is whoever the feed gives one identifier; "
            "a person with two vehicles is two users, and their bounds add up to twice these.",
        ],
        _odds(config),
    )
    yield Section("What an attack achieves", list(_attacks(config)))
    yield Section(
        "What others promise",
        ["Other published statistics, as their authors state them. A day of this feed has " + _stated(config) + "."],
        [
            ("what", "ε", "for one"),
            *((known.what, known.epsilon, known.unit + f" ({known.source})") for known in COMPARATORS),
        ],
    )
    personal = [row for row in kept(config) if row.personal]
    yield Section(
        "What is kept about single users, inside",
        [],
        [("what", "where", "how long"), *((row.what, row.place, row.time) for row in personal)],
    )
    yield Section("This rests on", list(_assumptions(config)))
    yield Section("Do not use it if", list(_refusals(config)))
    yield Section(
        "Version",
        [
            f"Hexveil {__version__}. Settings (SHA-256): {fingerprint(config)}.",
            "Name, role, date, signature: ______________________________________________",
        ],
    )


def _stated(config: Config) -> str:
    privacy = config.privacy
    delta = "" if privacy.delta is None else f" (δ = {privacy.delta:g})"
    return f"ε {privacy.budget:g}{delta}"


def _odds(config: Config) -> Table:
    rows: list[Sequence[str]] = [
        (
            "about what a user did in",
            "ε",
            "at most so many times likelier",
            "1 in 1 000 becomes",
            "1 in 100 becomes",
            "even becomes",
        )
    ]
    for bound in bounds(config):
        after = [percent(posterior(prior, bound.epsilon)) for prior in (0.001, 0.01, 0.5)]
        rows.append((NAMES[bound.days], f"{bound.epsilon:.4g}", factor(bound.epsilon), *after))
    among = one_day_among_others(config)
    if among is not None:
        after = [percent(posterior(prior, among)) for prior in (0.001, 0.01, 0.5)]
        rows.append(("a day, by all releases of its block", f"{among:.4g}", factor(among), *after))
    return rows


def _attacks(config: Config) -> Iterator[str]:
    privacy = config.privacy
    one = percent(posterior(0.5, privacy.epsilon))
    yield (
        "**Hard:** a user in one window among many, about whom the reader knows nothing else. Even if they know "
        f"everybody else's data, an even guess becomes at most {one}; in one release of a busy hexagon, whose other "
        "users they do not know, they learn next to nothing."
    )
    if config.participation is None and not config.value.is_speed:
        yield (
            "**Easy:** following a vehicle by public positions and times, which needs no release. This feed protects "
            f"measured values ({config.value.name}), not where or when."
        )
        return
    if config.participation is None:
        yield (
            "**Easy:** computing speeds from public positions and times, which needs no release. On two recorded days, "
            "straight lines between fixes two minutes apart gave half of the buses their mean over three hours within "
            "3 km/h. This feed protects measured speeds, not where or when."
        )
        return
    nights = nights_to_stand_out(config)
    paid = "no horizon ends it"
    if privacy.horizon is not None:
        paid = (
            f"the horizon ends it after {privacy.horizon_budget // config.window_grant} such windows in "
            f"{privacy.horizon.period.days} days"
        )
    yield (
        "**Easy:** a user who is alone in one hexagon in the same window every day stands out by three standard "
        f"deviations of the noise after {nights} days; {paid}. Waiting helps the reader, because noise averages out."
    )


def nights_to_stand_out(config: Config) -> int:
    """After how many windows, alone in one hexagon in each, a user moves a number by three standard deviations of its
    noise.

    For relation "participation", and a user who counts there fully.
    """
    from stream.statistics.participation.draw import participation_of
    from stream.terms import Terms

    terms = participation_of(Terms.of(config))
    t, s = terms.scales
    deviation = float(t[0] / s[0] / UNIT) * (1.0 if terms.gaussian else float(np.sqrt(2)))
    return max(1, math.ceil((3 * deviation) ** 2 - 1e-9))  # of floats, which err upwards in their last digit


def _assumptions(config: Config) -> Iterator[str]:
    yield "Whoever runs the worker, Kafka's input topic or Redis sees raw events and is trusted."
    yield (
        f"Identifiers stay the same within a {'block of the horizon' if config.privacy.horizon else 'period'}: a user "
        "with two has two budgets. Redis keeps every charge; without it nothing is released."
    )
    yield "No other release is made from the same data, by another feed name or by an evaluation that leaves the house."


def _refusals(config: Config) -> Iterator[str]:
    if config.relation == NeighbouringRelation.VALUES:
        yield (
            "the vehicles are private cars, taxis or riders, or positions are not public anyway: this relation does "
            "not hide whereabouts;"
        )
        yield "drivers must not be judged by where and how long they stood, which is public here."
    else:
        yield "somebody could be harmed by a guess at the odds above, over the days that they take part;"
        yield "most hexagons have one regular traveller: then the crowd that hides them is missing."
