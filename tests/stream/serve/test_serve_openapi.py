"""The OpenAPI document is valid, complete and correct: a generated client reads real data, and a fuzzer finds no
contradiction. The page that shows the API says all that the document says, its links lead somewhere, and anybody can
read it."""

import asyncio
import importlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient
from axe_playwright_python.async_playwright import Axe
from openapi_spec_validator import validate
from pyarrow import parquet

from stream.messages.cells import cells_of, with_estimates
from stream.messages.message import HEXAGON_SPEED
from stream.serve import openapi
from stream.serve.ogc.features import ROOT
from stream.serve.operations import BASE
from tests.stream.serve.browser import PHONE, needs_chromium
from tests.stream.serve.made_places import city_files
from tests.stream.serve.made_windows import with_histograms
from tests.stream.serve.serving import json_of, origin_of, served, serving
from tests.support.builders import bus_config
from tests.support.nightly import nightly_but

GENERATOR = "content_type_overrides:\n  application/vnd.apache.parquet: application/octet-stream\npost_hooks: []\n"


DOCUMENT, PAGE = f"{BASE}/openapi.json", f"{BASE}/openapi.html"


@pytest_asyncio.fixture(loop_scope="session")
async def client(tmp_path: Path) -> AsyncIterator[TestClient]:
    async with served(bus_config(tmp_path), []) as made:
        yield made


async def run(*command: str, cwd: Path) -> str:
    """Run a command beside the service; its output."""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


@pytest.mark.asyncio(loop_scope="session")
async def test_the_document_is_valid_and_describes_every_path_that_is_served(client):
    document = await json_of(client, DOCUMENT)
    validate(document)
    assert document["openapi"].startswith("3.1")
    assert all({"400", "503"} <= path["get"]["responses"].keys() for path in document["paths"].values())
    await json_of(client, f"{DOCUMENT}?x=1", 400)
    routes = {resource.canonical for resource in client.server.app.router.resources()} - {f"{ROOT}/"}
    assert {path for path in routes if path.startswith((BASE, ROOT))} == {*document["paths"], DOCUMENT, PAGE}
    names = [path["get"]["operationId"] for path in document["paths"].values()]
    assert len(set(names)) == len(names)
    for path in document["paths"].values():
        for parameter in path["get"]["parameters"]:
            assert parameter["description"]
            assert "example" in parameter


async def test_a_generated_client_reads_what_was_released(tmp_path, monkeypatch, own_feed):
    messages, _ = with_histograms(tmp_path, **own_feed)
    values = [message.value for message in messages if message.topic == HEXAGON_SPEED]
    released = [json.loads(with_estimates(value, cell)) for value, cell in zip(values, cells_of(values), strict=True)]
    async with serving(bus_config(tmp_path, **own_feed), messages) as client:
        (tmp_path / "openapi.json").write_text(json.dumps(await json_of(client, DOCUMENT)))
        (tmp_path / "generator.yml").write_text(GENERATOR)
        command = "generate --path openapi.json --config generator.yml --fail-on-warning --output-path made"
        await run("-m", "openapi_python_client", *command.split(), cwd=tmp_path)
        monkeypatch.syspath_prepend(tmp_path / "made")
        await asyncio.to_thread(read_with_the_generated_client, origin_of(client), released)


def read_with_the_generated_client(base: str, released: list[dict[str, Any]]) -> None:
    def function(tag: str, name: str) -> Any:
        return importlib.import_module(f"hexveil_client.api.{tag}.{name}").sync

    client = importlib.import_module("hexveil_client").Client(base_url=base)
    (window,) = function("windows", "list_windows")(client=client).windows
    assert window.complete
    start = window.window.start
    hexagons = function("hexagons", "list_hexagons")(client=client, window=start).hexagons
    # The client writes times with an offset instead of Z.
    assert [
        cell.to_dict() | {"window": said["window"]} for cell, said in zip(hexagons, released, strict=True)
    ] == released
    first = function("hexagons", "get_cell")(released[0]["cell"], client=client).releases
    assert [cell.mean.interval for cell in first] == [released[0]["mean"]["interval"]]
    count = function("histograms", "count_range")
    answer = count(start, client=client, bbox="-98,30,-97.4,30.6", mechanism="ug")
    assert answer.interval[0] < answer.value < answer.interval[1]
    problem = count(start, client=client, bbox="-98,30,-97.4,99", mechanism="ug")
    assert (problem.status, "north" in problem.title) == (400, True)
    listed = function("histograms", "list_histograms")(client=client).windows[0].histograms
    assert [one.mechanism for one in listed] == ["ag", "htf", "ug"]
    table = parquet.read_table(function("downloads", "download_parquet")(start, client=client).payload)
    assert table.num_rows == len(released)
    assert function("downloads", "download_csv")(start, client=client).count("\r\n") == len(released) + 1


@pytest.mark.parametrize("examples", nightly_but([1], [1, 6]))
async def test_a_fuzzer_finds_no_answer_that_the_document_does_not_allow(tmp_path, examples, own_feed):
    """Requests per path and phase: one in every run."""
    messages, _ = with_histograms(tmp_path, **own_feed)
    async with serving(bus_config(tmp_path, **own_feed | city_files(tmp_path)), messages) as client:
        output = await run(
            "-m",
            "schemathesis.cli",
            "run",
            f"{origin_of(client)}{DOCUMENT}",
            # A stream has no end; which boxes, moments and cells exist no schema can say.
            f"--exclude-path={BASE}/stream",
            "--exclude-checks=positive_data_acceptance",
            "--generation-deterministic",
            f"--max-examples={examples}",
            f"--phases={'examples,fuzzing' if examples == 1 else 'examples,coverage,fuzzing,stateful'}",
            "--request-timeout=20",
            "--no-color",
            cwd=tmp_path,
        )
    summary = re.search(r"(\d+) generated, (\d+) passed", output)
    assert summary is not None, output
    assert int(summary[1]) == int(summary[2]) > 60 * examples


class Read(HTMLParser):
    """Text, identifiers and links of a page; elements must be closed in the order in which they were opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.named, self.links, self.open = "", set[str](), set[str](), list[str]()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.named |= {value for name, value in given.items() if name == "id" and value}
        self.links |= {value for name, value in given.items() if name == "href" and value}
        if tag not in ("meta", "li"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "li":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_says_what_the_document_says_and_its_examples_are_requests_that_are_taken(client):
    document = await json_of(client, DOCUMENT)
    async with client.get(PAGE) as answer:
        assert (answer.status, answer.content_type, answer.charset) == (200, "text/html", "utf-8")
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
        page = Read(await answer.text())
    assert not page.open
    for path, methods in document["paths"].items():
        assert f"GET {path}" in page.text
        for parameter in methods["get"]["parameters"]:
            assert parameter["description"] in page.text
    for name, component in document["components"]["schemas"].items():
        assert f"schema-{name}" in page.named
        assert all(member in page.text for member in component.get("properties", {}))
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.named
    for link in page.links:
        if not link.startswith("#") and not link.endswith("/stream"):
            async with client.get(urljoin(PAGE, link)) as answer:
                assert answer.status in (200, 404, 501), (link, await answer.text())


def test_nothing_in_a_document_can_become_an_element():
    odd = '<script>"&'
    schema = {"type": "string", "default": odd, "enum": [odd]}
    parameter = {"name": odd, "in": "query", "required": True, "schema": schema, "description": odd, "example": odd}
    answers = {"200": {"description": odd, "content": {odd: {"schema": {"type": "string"}}}}}
    operation = {"operationId": "x", "tags": ["T"], "summary": odd, "parameters": [parameter], "responses": answers}
    document = {
        "info": {"title": odd, "version": odd, "description": odd},
        "tags": [{"name": "T", "description": odd}],
        "paths": {"/x": {"get": operation}},
        "components": {"schemas": {"S": {"description": odd, "properties": {odd: {"description": odd}}}}},
    }
    html = openapi.page(document).decode()
    assert "<script" not in html
    assert not Read(html).open


@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_is_styled_loads_nothing_else_and_has_no_violation(browser, client):
    async with await browser.new_context(viewport=PHONE, bypass_csp=True) as context:
        page = await context.new_page()
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        await page.goto(str(client.make_url(PAGE)))
        assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        # The sections are made by one function, so one stands for all: the whole page takes axe ten seconds.
        await page.evaluate(
            "for (const section of [...document.querySelectorAll('section')].slice(1)) section.remove()"
        )
        for colours, only in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            await page.emulate_media(color_scheme=colours)
            results = await Axe().run(page, options=only)
            assert results.violations_count == 0, results.generate_report()
        assert requests == [str(client.make_url(PAGE))]
    async with await browser.new_context() as context:
        strict = await context.new_page()
        await strict.goto(str(client.make_url(PAGE)))
        assert await strict.evaluate("getComputedStyle(document.body).maxWidth") == "960px", (
            "the policy lets it through"
        )
