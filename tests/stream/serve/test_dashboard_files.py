"""What the dashboard is built from, how its files are served, and that a wheel holds them. What the dashboard says: one
file of texts for each language, and nothing said elsewhere."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from stream.local.kafka import REPO_ROOT
from stream.serve.api import make_app
from stream.serve.static_files import read_assets
from tests.stream.serve.serving import served
from tests.support.builders import bus_config
from tests.support.command import run

SOURCES = REPO_ROOT / "stream" / "serve" / "dashboard"
STATIC = REPO_ROOT / "stream" / "serve" / "static"
TOP = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")
needs_packages = pytest.mark.skipif(
    not (SOURCES / "node_modules").is_dir() or shutil.which("npm") is None,
    reason="no node_modules in stream/serve/dashboard; run: make dashboard",
)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_built_files_are_those_of_the_sources():
    """``build.json`` was written by the build: digests of the sources and of every built file but itself."""
    manifest = json.loads((STATIC / "build.json").read_text())
    below = [path.relative_to(SOURCES).as_posix() for path in (SOURCES / "src").rglob("*") if path.is_file()]
    listed = "".join(f"{sha256((SOURCES / name).read_bytes())}  {name}\n" for name in sorted([*TOP, *below]))
    assert manifest["sources"] == sha256(listed.encode()), "sources changed since the build; run: make dashboard"
    built = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    assert built == {*manifest["files"], "build.json", "licences.md"}
    for name, digest in manifest["files"].items():
        assert sha256((STATIC / name).read_bytes()) == digest, name


@needs_packages
@pytest.mark.nightly
def test_building_again_gives_the_same_files(tmp_path):
    run = ["npx", "vite", "build", "--outDir", str(tmp_path), "--emptyOutDir", "--logLevel", "warn"]
    subprocess.run(run, cwd=SOURCES, check=True, capture_output=True, timeout=240)
    for path in STATIC.rglob("*"):
        if path.is_file():
            assert (tmp_path / path.relative_to(STATIC)).read_bytes() == path.read_bytes(), path.name


@needs_packages
def test_the_pure_parts_pass_their_own_tests():
    done = subprocess.run(["npm", "test"], cwd=SOURCES, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_licences_of_everything_bundled_are_shipped():
    text = (STATIC / "licences.md").read_text()
    for package in ("maplibre-gl", "h3-js", "uplot", "pmtiles", "topojson-client", "world-atlas"):
        assert package in text, package


async def test_files_come_compressed_with_entity_tags_and_a_strict_policy(tmp_path):
    async with TestClient(TestServer(make_app(bus_config(tmp_path))), auto_decompress=False) as client:
        for name in ("", *(name for name in read_assets() if name.startswith("assets/"))):
            answer = await client.get(f"/{name}", headers={"Accept-Encoding": "gzip"})
            assert answer.status == 200
            body, _ = read_assets()[name or "index.html"]
            assert answer.headers.get("Content-Encoding") == ("gzip" if len(body.plain) >= 1024 else None)
            assert ("immutable" in answer.headers["Cache-Control"]) == bool(name)
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            again = await client.get(f"/{name}", headers={"If-None-Match": answer.headers["ETag"]})
            assert again.status == 304
        plain = await client.get("/", headers={"Accept-Encoding": "identity"})
        assert await plain.read() == (STATIC / "index.html").read_bytes()


def test_the_first_load_is_at_most_600_kb_compressed_in_every_language():
    """Everything but what is fetched only when it is opened, the past of a cell and the search, or seen: the land."""
    size = {name: len(body.packed or body.plain) for name, (body, _) in read_assets().items()}
    languages = [name for name in size if re.match(r"assets/\w\w-", name)]
    assert len(languages) == 4, "English is in the main script"
    later = [name for name in size if re.match(r"assets/(sparkline|search|land)-", name)]
    assert len(later) == 3
    main = (STATIC / "index.html").read_text() + "".join(
        path.read_text() for path in STATIC.glob("assets/*.js") if f"assets/{path.name}" not in later
    )
    for name in later:
        file = re.escape(name.removeprefix("assets/"))
        assert re.search(rf"import\([`\"']\./{file}", main), f"{name} is loaded on demand"
        assert not re.search(rf"(from|import) ?[`\"']\./{file}|src=[^>]*{file}", main), f"{name} is loaded at once"
    always = sum(kb for name, kb in size.items() if name not in (*languages, *later, "licences.md", "build.json"))
    assert always + max(size[name] for name in languages) <= 600_000


async def test_the_page_is_framed_by_those_whom_the_configuration_names_and_else_by_nobody(tmp_path):
    sites = ["https://desk.example.org", "http://127.0.0.1:8000"]
    for named, said in (([], "'none'"), (sites, " ".join(sites))):
        config = bus_config(tmp_path, **{"public.frame_ancestors": named})
        async with served(config, []) as client:
            policy = (await client.get("/")).headers["Content-Security-Policy"]
            assert policy.endswith(f"; frame-ancestors {said}")


async def test_what_is_not_there_is_not_found(tmp_path):
    async with served(bus_config(tmp_path), []) as client:
        for path in ("assets/nothing.js", "assets/..%2fbuild.json", "index.html", "dashboard/basemap.pmtiles", "x"):
            answer = await client.get(f"/{path}")
            assert (answer.status, answer.content_type) == (404, "application/problem+json"), path


def test_the_page_has_no_inline_script_and_names_no_other_host():
    page = (STATIC / "index.html").read_text()
    assert "<script>" not in page
    assert "style=" not in page
    assert "http" not in page


def test_serve_refuses_a_basemap_that_is_none_before_it_starts_by_default_that_of_the_configuration(
    tmp_path, monkeypatch
):
    missing, other = tmp_path / "missing.pmtiles", tmp_path / "other.pmtiles"
    other.write_bytes(b"SQLite format 3")
    for file, remedy in ((missing, "name a PMTiles archive"), (other, "pmtiles convert")):
        for configured, options in ((file, []), (tmp_path / "unread.pmtiles", ["--basemap", file])):
            monkeypatch.setenv("HEXVEIL_PUBLIC__BASEMAP", str(configured))
            said = run("serve", "--config", REPO_ROOT / "config" / "bus-fleet.toml", *options, code=2).output
            assert str(file) in said
            assert remedy in said


TEXTS = SOURCES / "src" / "texts"
LANGUAGES = sorted(path.stem for path in TEXTS.glob("*.json"))
PUT_TOGETHER = re.compile(
    r".+\.value|(mean|moving|p50|p85|spread)\.(short|name|title)|chip\..+|kind\..+|legend\.(modelled|raw|typical|difference)|legend\.against\..+|download\.(from|to)|area\.(box|polygon|refused\..+)"
    r"|comparison\.((day|scheduled)\.)?(same|slower|faster|within)|day\.(no|cell)\..+|table\.day\..+"
    r"|(reason|about\.relation|about\.noise|about\.speeds)\..+|(empty|gone|withheld|unknown)\.(title|text)"
    r"|route\.(minutes|speed|now|typical|mean|scheduled|(from|to)(-end)?)|over\.(any|workday|saturday|sunday|weekend)"
    r"|search\.(area|route|stop|cell)"
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
def test_every_language_has_the_same_texts_with_the_same_placeholders(language):
    texts = texts_of(language)
    assert list(texts) == list(ENGLISH)
    for key, text in texts.items():
        for form in forms(text):
            assert form.strip(), key
            assert placeholders(form) == placeholders(forms(ENGLISH[key])[0]), f"{language}: {key}"


def test_the_page_has_the_types_of_the_served_document():
    made = subprocess.run([sys.executable, REPO_ROOT / ".ci" / "api-types"], capture_output=True, text=True, check=True)
    assert (SOURCES / "src" / "schemas.d.ts").read_text("utf-8") == made.stdout, "run: make dashboard"


PLURALS = {"en": {"one", "other"}, "pl": {"one", "few", "many", "other"}}
"""Forms of a text with a number; languages that are not named have those of English."""


def test_the_languages_are_those_that_the_page_offers_with_every_plural_form():
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


def test_the_layout_names_no_side_so_that_it_can_run_from_right_to_left():
    lines = (SOURCES / "src" / "style.css").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if PHYSICAL.search(line) and not line.startswith(CENTRED)]


def test_every_text_is_used_and_no_source_writes_sentences_itself():
    files = [SOURCES / "index.html", *(SOURCES / "src").glob("*.ts")]
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    whole = [key for key in ENGLISH if not PUT_TOGETHER.fullmatch(key)]
    unused = [key for key in whole if f"'{key}'" not in source and f'"{key}"' not in source]
    assert not unused
    assert set(re.findall(r'data-text="(.+?)"', source)) <= ENGLISH.keys()
    page = (SOURCES / "index.html").read_text(encoding="utf-8").partition("<noscript>")[0]
    assert set(re.findall(r">\s*([A-Za-z][^<]*?)\s*<", page)) == {"Hexveil", "km/h", "mph"}
    assert "aria-label=" not in page


def test_the_limits_that_the_server_names_have_texts_and_are_among_the_known_limits():
    known = (REPO_ROOT / "docs" / "known-limits.md").read_text(encoding="utf-8").replace("\n  ", " ").casefold()
    titles = [text for key, text in ENGLISH.items() if key.startswith("limit.") and key.endswith(".title")]
    assert len(titles) == 7
    for title in titles:
        assert title.rstrip(".").casefold() in known, title
