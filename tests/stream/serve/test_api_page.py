"""The page that shows the API says all that the document says, its links lead somewhere, and anybody can read it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser

from stream.serve import api_page
from tests.stream.serve.browser import PHONE, needs_chromium
from tests.stream.serve.serving import serving_file
from tests.support.builders import bus_config

PAGE = "/api/v1/openapi.html"


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


@pytest_asyncio.fixture(loop_scope="session")
async def client(tmp_path: Path) -> AsyncIterator[TestClient]:
    (tmp_path / "releases").mkdir()
    async with serving_file(bus_config(tmp_path), tmp_path / "releases") as made:
        yield made


@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_says_what_the_document_says_and_its_examples_are_requests_that_are_taken(
    client: TestClient,
) -> None:
    document: dict[str, Any] = await (await client.get("/api/v1/openapi.json")).json()
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


def test_nothing_in_a_document_can_become_an_element() -> None:
    odd = '<script>"&'
    document = {
        "info": {"title": odd, "version": odd, "description": odd},
        "tags": [{"name": "T", "description": odd}],
        "paths": {
            "/x": {
                "get": {
                    "operationId": "x",
                    "tags": ["T"],
                    "summary": odd,
                    "parameters": [
                        {
                            "name": odd,
                            "in": "query",
                            "required": True,
                            "schema": {"type": "string", "default": odd, "enum": [odd]},
                            "description": odd,
                            "example": odd,
                        }
                    ],
                    "responses": {"200": {"description": odd, "content": {odd: {"schema": {"type": "string"}}}}},
                }
            }
        },
        "components": {"schemas": {"S": {"description": odd, "properties": {odd: {"description": odd}}}}},
    }
    html = api_page.page(document).decode()
    assert "<script" not in html
    assert not Read(html).open


@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_is_styled_loads_nothing_else_and_has_no_violation(browser: Browser, client: TestClient) -> None:
    for colours in ("light", "dark"):
        async with await browser.new_context(color_scheme=colours, viewport=PHONE, bypass_csp=True) as context:
            page = await context.new_page()
            requests: list[str] = []
            page.on("request", lambda request, seen=requests: seen.append(request.url))
            await page.goto(str(client.make_url(PAGE)))
            only = {} if colours == "light" else {"runOnly": ["color-contrast"]}
            # The sections are made by one function, so one stands for all: the whole page takes axe ten seconds.
            await page.evaluate(
                "for (const section of [...document.querySelectorAll('section')].slice(1)) section.remove()"
            )
            results = await Axe().run(page, options=only)
            assert results.violations_count == 0, results.generate_report()
            assert requests == [str(client.make_url(PAGE))]
            assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    async with await browser.new_context() as context:
        strict = await context.new_page()
        await strict.goto(str(client.make_url(PAGE)))
        assert await strict.evaluate("getComputedStyle(document.body).maxWidth") == "960px", (
            "the policy lets it through"
        )
