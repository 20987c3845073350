"""Areas that a reader draws: counted by the server like named ones, kept in the address, refused with a reason."""

import asyncio
import json
import re
import threading
from typing import Any
from urllib.parse import quote

import h3
import pytest
from aiohttp import ClientSession, TCPConnector
from playwright.async_api import Route, expect

from dpcore.noise import Noise
from stream.config import Config
from stream.messages.message import HEXAGON_SPEED, Message, window_message
from stream.serve.city import city
from stream.serve.parameters import MOST_CORNERS
from stream.windows import Window
from tests.stream.serve.browser import (
    LOOKS,
    fields,
    needs_chromium,
    no_violation,
    place_of,
    reloaded,
    repainted,
    revisit,
    shows,
)
from tests.stream.serve.city import BUSY, STEADY, bodies, city_config, closed, window
from tests.stream.serve.made_places import HOSTILE, city_files
from tests.stream.serve.serving import followed, page_of, publish, served
from tests.support.builders import SLOT, random_rows, riders
from tests.support.releasing import build_messages, planned

pytestmark = pytest.mark.asyncio(loop_scope="session")

MERGED = h3.cell_to_parent(BUSY, 6)
CHILD = h3.cell_to_center_child(MERGED, 7)
"""The child in whose middle its parent has its centre, too."""


def around(cell: str, half: float) -> list[tuple[float, float]]:
    """Corners of a box around the centre of a cell: longitude and latitude."""
    lat, lng = (round(degrees, 5) for degrees in h3.cell_to_latlng(cell))
    return [(round(lng + x * half, 5), round(lat + y * half, 5)) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))]


def text_of(ring: list[tuple[float, float]]) -> str:
    return ",".join(str(number) for corner in ring for number in corner)


def merged_window(config: Config) -> list[Message]:
    """A window of two cells: MERGED, which excludes CHILD, and CHILD."""
    made = window(config, 0)
    released = bodies(made)
    changed = {
        MERGED: released[STEADY] | {"cell": MERGED, "resolution": 6, "excludes": [CHILD]},
        CHILD: released[BUSY] | {"cell": CHILD},
    }
    slot, feed = Window(SLOT, SLOT + 3600), config.feed.name
    cells = [window_message(HEXAGON_SPEED, feed, slot, cell, cell, changed[cell]) for cell in sorted(changed)]
    return closed(cells, made[-1])


async def test_a_merged_cell_and_what_was_released_apart_are_counted_once_in_boxes_and_areas(config):
    ring = around(CHILD, 0.003)
    (west, south), (east, north) = ring[0], ring[2]
    async with served(config, merged_window(config)) as client:
        for cells, ring_of_cells in (([CHILD], ring), (sorted([CHILD, MERGED]), around(CHILD, 0.2))):
            area = await (await client.get(f"/api/v1/area?ring={text_of(ring_of_cells)}")).json()
            assert area["hexagons"] == cells
        answer = await client.get(f"/api/v1/hexagons?bbox={west},{south},{east},{north}")
        assert [hexagon["cell"] for hexagon in (await answer.json())["hexagons"]] == [CHILD]


async def test_a_drawn_area_answers_as_a_named_one_and_carries_no_name(config):
    messages = window(config, 0)
    released = bodies(messages)
    async with served(config, messages) as client:
        answer = await client.get(f"/api/v1/area?ring={text_of(around(BUSY, 0.01))}&window=2017-03-21T12:00:00Z")
        area = await answer.json()
        assert area["hexagons"] == [BUSY]
        assert area["mean"]["raw"] == pytest.approx(released[BUSY]["mean"]["raw"])
        assert not {"name", "kind"} & area.keys()
        assert len(area["geometry"]["coordinates"][0][0]) == 5
        unchanged = {"If-None-Match": answer.headers["ETag"]}
        assert (await client.get(str(answer.url.relative()), headers=unchanged)).status == 304


async def test_whoever_draws_many_areas_at_once_waits_alone_and_pushes_out_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(city, "MOST_DRAWN", 1)
    monkeypatch.setattr(city, "MOST_WAITING", 1)
    config = city_config(tmp_path, **city_files(tmp_path))
    rings = [f"/api/v1/area?ring={text_of(around(BUSY, 0.01 + step / 1_000))}" for step in range(30)]
    named = ["/api/v1/areas/route:10"] * 5
    async with served(config, window(config, 0)) as client:
        kept = await client.get(rings[0])
        assert (await client.get(named[0])).status == 200
        answers = await asyncio.gather(*(client.get(path) for path in (*rings[1:], rings[0], *named)))
        drawn = answers[: len(rings) - 1]
        assert {answer.status for answer in drawn} == {200, 503}
        assert {answer.headers.get("Retry-After") for answer in drawn if answer.status == 503} == {"5"}
        assert {answer.status for answer in answers[len(drawn) :]} == {200}, "what is kept costs no turn"
        assert answers[len(drawn)].headers["ETag"] == kept.headers["ETag"]
        first = await asyncio.gather(*(client.get(path) for path in (*rings[1:], "/api/v1/areas/route:<b>2<%2Fb>")))
        assert first[-1].status == 200, "a named area has another queue"


async def test_a_reader_who_floods_the_queue_of_drawn_areas_shuts_nobody_else_out(monkeypatch, config):
    combined, held_back = city.combined, threading.Event()

    def slowly(*given: Any) -> dict[str, Any]:
        held_back.wait(60)
        return combined(*given)

    monkeypatch.setattr(city, "combined", slowly)
    paths = [f"/api/v1/area?ring={text_of(around(BUSY, 0.01 + step / 1_000))}" for step in range(60)]
    async with (
        served(config, window(config, 0)) as client,
        ClientSession(client.make_url("/"), connector=TCPConnector(local_addr=("127.0.0.2", 0))) as other,
    ):
        flood = [asyncio.create_task(client.get(path)) for path in paths[3:]]
        await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        honest = [asyncio.create_task(other.get(path)) for path in paths[:3]]
        await asyncio.sleep(0.3)
        flood += [asyncio.create_task(client.get(path)) for path in paths[3:]]
        await asyncio.sleep(0.3)
        held_back.set()
        assert [(await task).status for task in honest] == [200] * 3
        statuses = [(await task).status for task in flood]
        assert set(statuses) == {200, 503}
        assert statuses.count(503) >= len(flood) / 2


async def test_under_participation_a_drawn_area_answers_as_the_named_one_of_its_corners(tmp_path):
    ring = around(BUSY, 0.06)
    shape = {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}
    feature = {"type": "Feature", "properties": {"name": "Same"}, "geometry": shape}
    file = tmp_path / "areas.geojson"
    file.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    domain = {"south": 30.1, "west": -97.9, "north": 30.5, "east": -97.5}
    overrides: dict[str, Any] = {"feed.domain": domain, "public.areas": str(file)}
    overrides |= {"privacy.epsilon": 4.0, "privacy.budget": 192.0}  # so little noise that the area has a mean
    config = riders(tmp_path, **overrides | {"speed.statistics": ["mean"], "speed.post_processing": []})
    plan, contributions = planned(config, random_rows(1, 4_000, users=1_000))
    messages = build_messages(plan, contributions, Noise(), None)[0]
    async with served(config, messages) as client:
        named = await (await client.get("/api/v1/areas/Same")).json()
        drawn = await (await client.get(f"/api/v1/area?ring={text_of(ring)}")).json()
    assert drawn == {name: value for name, value in named.items() if name not in ("name", "kind")}
    assert drawn["published"] > 1
    assert drawn["mean"]["interval"][0] <= drawn["mean"]["value"] <= drawn["mean"]["interval"][1]


NO_RINGS = {
    **dict.fromkeys(["", "1,2,3,4", "1,2,3,4,5", "1,2,3,4,5,6,7"], "is not a list of three or more pairs"),
    "1,2,1,2,1,2": "different positions and no area",
    "1,2,3,91,5,6": "not a place on Earth",
    "1,2,3,nan,5,6": "is not a list",
    "1,2,3,<b>,5,6": "is not a list",
    ",".join(["1,2"] * (MOST_CORNERS + 1)): "has 101 corners, more than 100",
}


async def test_a_ring_that_is_none_is_refused_with_its_reason(config):
    async with served(config, []) as client:
        for ring, said in NO_RINGS.items():
            answer = await client.get("/api/v1/area", params={"ring": ring})
            assert (answer.status, answer.content_type) == (400, "application/problem+json"), ring
            assert said in (await answer.json())["title"]


@needs_chromium
@LOOKS
async def test_a_polygon_is_drawn_named_measured_and_kept_in_the_address(browser, config, look):
    async with page_of(browser, config, window(config, 0), "#at=10.6/30.2100/-97.7000", **look) as (page, _):
        await page.get_by_role("button", name="Measure an area").click()
        await page.get_by_role("radio", name="Polygon").check(force=True)
        for offset in ((-50, 40), (50, 40), (50, -40), (-50, -40)):
            await page.mouse.click(*await place_of(page, STEADY, offset))
        await expect(page.get_by_label("Corners")).to_have_value(re.compile(r"^(30\.\d{5}, -97\.\d{5}\s?){4}$"))
        await no_violation(page)
        await page.get_by_label("Name (optional)").fill(HOSTILE)
        await page.get_by_role("button", name="Measure", exact=True).click()
        await expect(page.locator("#area-mean")).to_contain_text("km/h, 95 % interval")
        await expect(page.locator("#details h2 bdi")).to_have_text(HOSTILE)
        await expect(page.locator("#details")).to_contain_text("1 published of 1 cells")
        await expect(page.locator("#details")).to_contain_text("Drawn by a reader, not named by the operator")
        await no_violation(page)
        said = await fields(page)
        assert said["area"] == HOSTILE
        assert len(said["ring"].split(",")) == 8
        await reloaded(page)
        await expect(page.locator("#details h2 bdi")).to_have_text(HOSTILE)
        await expect(page.locator("#area-mean")).to_contain_text("km/h, 95 % interval")
        async with page.expect_download() as saving:
            await page.get_by_role("link", name="Save as GeoJSON").click()
        file = json.loads((await (await saving.value).path()).read_text(encoding="utf-8"))
        assert file["features"][0]["properties"] == {"name": HOSTILE}
        assert await page.title() == "Hexveil"
        await page.locator("#details-close").click()
        assert not {"area", "ring"} & (await fields(page)).keys()


@needs_chromium
async def test_a_polygon_is_drawn_by_keyboard_alone(browser, config):
    async with page_of(browser, config, window(config, 0), "#at=11/30.25/-97.7") as (page, _):
        canvas = page.locator("#map canvas")
        await canvas.focus()
        await page.keyboard.press("a")
        box = page.get_by_role("radio", name="Box")
        await expect(box).to_be_focused()
        await page.keyboard.press("ArrowRight")
        await expect(page.get_by_role("radio", name="Polygon")).to_be_focused()
        await canvas.focus()
        for count, key in enumerate(("ArrowLeft", "ArrowUp", "ArrowRight"), 1):
            await page.keyboard.press("Enter")
            await expect(page.get_by_label("Corners")).to_have_value(re.compile(rf"^(\S+, \S+\s?){{{count}}}$"))
            at = (await fields(page))["at"]
            await page.keyboard.press(key)
            await page.wait_for_function("at => new URLSearchParams(location.hash.slice(1)).get('at') !== at", arg=at)
        corners = page.get_by_label("Corners")
        await corners.fill("")
        await corners.fill("30.2, -97.8\n30.3, -97.7\n30.4, -9")
        await corners.fill("30.2, -97.8\n30.3, -97.7\n30.4")
        await canvas.focus()
        await page.keyboard.press("Enter")
        half = r"^30\.20000, -97\.80000\n30\.30000, -97\.70000\n30\.4\n\S+, \S+$"
        await expect(corners).to_have_value(re.compile(half))
        await corners.fill("\n".join(f"{lat}, {lng}" for lng, lat in around(BUSY, 0.01)))
        await page.get_by_label("Name (optional)").focus()
        await page.keyboard.type("Mine")
        await page.keyboard.press("Enter")
        await expect(page.locator("#area-mean")).to_contain_text("km/h, 95 % interval")
        for _ in range(2):
            await canvas.focus()
            await page.keyboard.press("a")
            await expect(page.get_by_label("Corners")).to_have_value("")
            await canvas.focus()
            await page.keyboard.press("Enter")
            await expect(page.get_by_label("Corners")).not_to_have_value("")
            await page.keyboard.press("Escape")
            await expect(page.locator("#details")).to_be_hidden()


@needs_chromium
@pytest.mark.nightly
async def test_where_cells_are_larger_than_the_area_or_none_was_released_or_its_address_is_wrong_it_says_so(
    browser, config
):
    """Every reason for which an address is refused is in ``pure.test.ts``."""
    lat, lng = h3.cell_to_latlng(BUSY)
    small, nowhere = (
        text_of([(round(lng + x, 5), round(lat + y, 5)) for x, y in corners])
        for corners in (((0.002, 0), (0.003, 0), (0.003, 0.001)), ((1, 0), (1.1, 0), (1.1, 0.1)))
    )
    async with page_of(browser, config, window(config, 0), f"#ring={small}") as (page, _):
        reading = page.locator("#details .reading")
        await expect(reading).to_have_text("Cells are larger than the area")
        await no_violation(page)
        await page.locator("#details .cells button").click()
        await expect(page.locator("#details h2 code")).to_have_text(BUSY)
        await revisit(page, f"?ring={nowhere}")
        await expect(reading).to_contain_text("Nothing was released about this area")
        await revisit(page, f"#ring={text_of(around(BUSY, 0.01))}&area={quote('<script>' + 'x' * 80)}")
        await expect(page.locator("#details .problem")).to_contain_text("its name must have at most 80 characters")
        assert "ring" not in await fields(page)
        await page.locator("#details-close").click()
        await expect(page.locator("#details")).to_be_hidden()


@needs_chromium
async def test_an_answer_of_a_window_that_was_left_is_dropped_and_repaints_announce_only_windows(browser, config):
    left = asyncio.Event()

    async def held_back(route: Route) -> None:
        await left.wait()
        await route.continue_()

    messages = [*window(config, 0), *window(config, 1)]
    async with page_of(browser, config, messages, f"#ring={text_of(around(BUSY, 0.01))}") as (page, _):
        mean = page.locator("#details [data-window='2017-03-21T13:00:00Z'] #area-mean")
        await expect(mean).to_be_visible()
        await page.route(lambda url: "/api/v1/area?" in url and quote("2017-03-21T12:00:00Z") in url, held_back)
        await page.evaluate("""() => {
          globalThis.said = [];
          const status = document.getElementById('status');
          new MutationObserver(() => globalThis.said.push(status.textContent)).observe(status, { childList: true });
        }""")
        for hour, button in enumerate(("#earlier", "#later")):
            await page.locator(button).click()
            await shows(page, hour)
        async with page.expect_response(lambda answer: quote("2017-03-21T12:00:00Z") in answer.url):
            left.set()
        await expect(mean).to_be_visible()
        said = await page.evaluate("said")
        assert len(said) == 2
        assert all("4 cells" in text for text in said), said


@needs_chromium
@pytest.mark.nightly
async def test_what_is_being_typed_into_a_form_stays_when_a_window_arrives(browser, tmp_path, own_feed):
    config = city_config(tmp_path, **own_feed)
    async with followed(browser, config, window(config, 0), f"#ring={text_of(around(BUSY, 0.01))}") as page:
        name = page.get_by_label("Name (optional)")
        await name.fill("half a na")
        async with repainted(page):
            await publish(config.kafka.bootstrap, window(config, 1))
        await expect(page.locator("#details [data-window='2017-03-21T13:00:00Z'] #area-mean")).to_be_visible()
        await expect(name).to_have_value("half a na")
        await expect(name).to_be_focused()
