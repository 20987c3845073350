"""A day beside another day, in the browser: what is compared, how it is coloured, and what is said where there is
nothing."""

import json
import re
from typing import Any

import h3
import pytest
from playwright.async_api import Page, expect

from stream.messages.message import Message
from tests.stream.serve.browser import (
    DESKTOP,
    LAPTOP,
    PHONE,
    colour_of,
    fields,
    needs_chromium,
    no_violation,
    place_of,
    reloaded,
    repainted,
    shade_of,
    table_row,
)
from tests.stream.serve.city import (
    BUSY,
    JAM,
    LONELY,
    STEADY,
    UNCERTAIN,
    USUAL_DAY,
    Cell,
    bodies,
    city_config,
    closed,
    window,
)
from tests.stream.serve.serving import OUTSIDE, followed, json_of, page_of, publish
from tests.support.nightly import nightly

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

DAY, WEEK = 24, 7 * 24
"""Hours from 2017-03-21, 12:00 UTC, which is 07:00 in Chicago."""
START = "2017-03-21T12:00:00Z"


def changed(messages: list[Message], **cells: dict[str, Any]) -> list[Message]:
    """A window in which cells say something else, by cell; ``marker`` of the close marker."""
    *released, marker = messages
    made = []
    for message in released:
        body = json.loads(message.value)
        made.append(message._replace(value=json.dumps(body | cells.get(body["cell"], {})).encode()))
    return closed(made, marker, **cells.get("marker", {}))


async def chosen(page: Page, day: str) -> None:
    """Choose a day to compare with, and wait until it is on the screen."""
    async with repainted(page):
        await page.get_by_role("combobox", name="Day to compare with").select_option(day)


async def test_the_same_hour_of_a_week_before_is_compared_and_only_what_noise_does_not_explain_has_a_colour(
    browser, config
):
    """Which cells differ says the API, so no draw can make the test fail."""
    then, now = window(config, -WEEK), window(config, 0, {**JAM, UNCERTAIN: Cell(2, 1, 29.0)})
    messages = [*then, *window(config, -DAY), *now]
    place = "#at=10/30.25/-97.7"
    async with page_of(browser, config, messages, place) as (page, client):
        await expect(page.locator("#day")).to_be_hidden()
        async with repainted(page):
            await page.locator("#map canvas").focus()
            await page.keyboard.press("d")
        await expect(page.get_by_role("radio", name="Difference")).to_be_checked()
        legend = page.locator("#legend")
        await expect(legend.locator("h3")).to_have_text("Compared with Tue, 14 Mar 2017, 07:00–08:00")
        await expect(legend).to_contain_text("no difference beyond the noise")
        at = await fields(page)
        assert (at["colours"], "day" in at) == ("day", False)
        beside = (await json_of(client, f"/api/v1/windows/{START}/other-day"))["cells"]
        assert dict(zip(beside["cell"], beside["value"], strict=True)) == {
            cell: bodies(then)[cell]["mean"]["value"] for cell, body in bodies(now).items() if "mean" in body
        }
        coloured = {cell for cell, clear in zip(beside["cell"], beside["clear"], strict=True) if clear}
        assert BUSY in coloured
        for cell in (BUSY, STEADY, UNCERTAIN):
            assert (await shade_of(page, cell) < 24) == (cell not in coloured), cell
        red = await colour_of(page, BUSY)
        assert red[0] > 180 > red[1]
        await page.mouse.move(*await place_of(page, BUSY))
        tip = page.locator("#tooltip")
        await expect(tip).to_contain_text(
            re.compile(
                r"(3[89]|4[012]) % slower than on Tue, 14 Mar 2017: −8\.[0-9] ± 0\.[0-9] km/h as released, the error "
                r"being noise"
            )
        )
        await expect(tip).to_contain_text(re.compile(r"Tue, 14 Mar 2017, 07:00–08:00: 2[12]\.\d km/h, 95 % interval"))
        await chosen(page, "2017-03-20")
        await expect(legend.locator("h3")).to_have_text("Compared with Mon, 20 Mar 2017, 07:00–08:00")
        assert (await fields(page))["day"] == "2017-03-20"
        await reloaded(page)
        await expect(legend.locator("h3")).to_have_text("Compared with Mon, 20 Mar 2017, 07:00–08:00")
        await expect(page.get_by_role("combobox", name="Day to compare with")).to_have_value("2017-03-20")
        row = await table_row(page, BUSY)
        await expect(row).to_contain_text(re.compile(r"2[12]\.\d−8\.\d ± 0\.\d"))
        await expect(page.locator("#table-scroll thead")).to_contain_text("Mon, 20 Mar 2017")
        await expect((await table_row(page, LONELY)).locator("td")).to_have_count(5, timeout=1000)
        await page.locator("#table-close").click()
        await page.locator("#downloads summary").click()
        link = page.locator("#download-list ul").nth(1).locator("a", has_text="CSV")
        answer = await client.get(f"/{await link.get_attribute('href')}")
        assert "2017-03-20T12:00:00Z" in await answer.text()
        await page.keyboard.press("Escape")
        await page.emulate_media(media="print")
        await expect(page.locator("#day")).to_be_hidden()
        await expect(legend.locator("h3")).to_contain_text("Mon, 20 Mar 2017")


@pytest.mark.nightly
async def test_a_window_that_is_not_there_says_why_and_no_other_is_shown(browser, config):
    withheld = changed(window(config, -3 * DAY), marker={"withheld": True})
    messages = [*withheld, *window(config, -DAY), *window(config, 0)]
    reasons = {
        "2001-01-01": "The server does not have the window of Mon, 1 Jan 2001, 07:00. It keeps the newest windows only",
        "2017-03-18": "was withheld: its release could not be planned.",
        "2017-03-19": "The server does not have the window of Sun, 19 Mar 2017, 07:00.",
        "2017-03-21": "Tue, 21 Mar 2017 is the day of this window itself.",
        "2030-01-01": "The window of Tue, 1 Jan 2030, 07:00 was not released yet.",
    }
    async with page_of(browser, config, messages, "#colours=day&day=2001-01-01") as (page, _):
        legend = page.locator("#legend")
        for day, reason in reasons.items():
            await page.evaluate("day => { location.hash = `#colours=day&day=${day}`; }", day)
            await expect(legend).to_contain_text(reason)
            await expect(page.locator("#status")).to_contain_text(reason)
            assert await legend.locator(".swatch").count() == 0
            assert await shade_of(page, BUSY) < 24, day
        await page.mouse.move(*await place_of(page, BUSY))
        await expect(page.locator("#tooltip")).to_contain_text("was not released yet")
        await expect(page.locator("#tooltip")).not_to_contain_text("usual")
        row = await table_row(page, BUSY)
        await expect(row.locator(".none")).to_have_text("–")


@pytest.mark.nightly
async def test_a_cell_without_a_value_of_that_day_gives_its_public_reason(browser, config):
    then = {**USUAL_DAY, BUSY: Cell(1, 1, 20.0)}
    del then[STEADY]
    before = changed(window(config, -DAY, then), **{UNCERTAIN: {"excludes": [LONELY]}})
    messages = [*before, *window(config, 0)]
    async with page_of(browser, config, messages, "#colours=day&at=10/30.25/-97.7") as (page, _):
        said = {
            BUSY: "Mon, 20 Mar 2017, 07:00–08:00: not published. Too few users: 1 user reported here",
            STEADY: "nothing was released about this cell. Under “values”, only cells that users reported from",
            UNCERTAIN: "this cell was another area then",
        }
        for cell, reason in said.items():
            await page.mouse.move(*await place_of(page, cell))
            await expect(page.locator("#tooltip")).to_contain_text(reason)
        await expect(page.locator("#legend")).to_contain_text("no value of that day that can be compared with")


@pytest.mark.nightly
async def test_a_cell_of_a_window_that_merged_its_neighbours_was_another_area(browser, tmp_path):
    merging = {"hexagons.merge_until": 3.0, "hexagons.coarsest_resolution": 5, "privacy.epsilon": 8.0}
    config = city_config(tmp_path, **merging, **{"speed.min_users": 1, "privacy.budget": 192.0})
    children = sorted(h3.cell_to_children(h3.cell_to_parent(BUSY, 6), 7))[:4]
    few, many = ({cell: Cell(users, 2, 22.0) for cell in children} for users in (2, 100))
    merged, apart = window(config, -DAY, few), window(config, 0, many)
    assert set(bodies(apart)) == set(children)
    assert not set(bodies(merged)) & set(children)
    async with page_of(browser, config, [*merged, *apart], f"#colours=day&cell={children[0]}") as (page, _):
        await expect(page.locator("#details")).to_contain_text("this cell was another area then")
        await expect(page.locator("#details")).not_to_contain_text("nothing was released")


@pytest.mark.nightly
async def test_a_window_that_arrives_later_stands_beside_the_one_on_the_screen(browser, tmp_path, own_feed):
    config = city_config(tmp_path, **own_feed)
    async with followed(browser, config, window(config, 0), f"#colours=day&window={START}") as page:
        legend = page.locator("#legend")
        await expect(legend).to_contain_text("The server does not have the window of Mon, 20 Mar 2017, 07:00.")
        await publish(config.kafka.bootstrap, window(config, -DAY))
        await expect(legend.locator("h3")).to_have_text("Compared with Mon, 20 Mar 2017, 07:00–08:00")


async def test_the_comparison_goes_with_the_window_and_a_server_that_fails_leaves_what_is_known(browser, config):
    messages = [message for hour in (-DAY, -DAY + 1, 0, 1) for message in window(config, hour)]
    async with page_of(browser, config, messages, "#colours=day", errors=True) as (page, _):
        title, compared = page.locator("#legend h3"), "Compared with Mon, 20 Mar 2017, 0{}:00–0{}:00"
        await expect(title).to_have_text(compared.format(8, 9))
        await page.get_by_role("button", name="Earlier window").click()
        await expect(title).to_have_text(compared.format(7, 8))
        for fails, why in (
            (lambda route: route.fulfill(status=500, body="no"), "the server answered 500"),
            (lambda route: route.abort(), "the server does not answer"),
        ):
            await page.route("**/other-day*", fails)
            await page.get_by_role("combobox", name="Day to compare with").select_option("2017-03-20")
            for button, hours in (("Later window", "08:00–09:00"), ("Earlier window", "07:00–08:00")):
                await expect(page.locator("#notice")).to_contain_text(
                    f"comparison with another day is not available: {why}"
                )
                await expect(title).not_to_contain_text("Compared with Mon")
                await page.get_by_role("button", name=button).click()
                await expect(page.locator("#window-text")).to_contain_text(hours)
            await page.unroute("**/other-day*")
            await page.get_by_role("radio", name="Difference").check(force=True)
            await expect(title).to_have_text(compared.format(7, 8))


@pytest.mark.parametrize(
    ("size", "colours", "locale"),
    [(PHONE, "dark", "fr-FR"), nightly(DESKTOP, "light", "es-ES"), nightly(LAPTOP, "dark", "pl-PL")],
    ids=["390-dark", "1024-light", "1280-dark"],
)
async def test_axe_finds_no_violation_and_nothing_overflows(browser, config, size, colours, locale):
    messages = [*window(config, -DAY), *window(config, 0, JAM)]
    options: dict[str, Any] = {"size": size, "color_scheme": colours, "locale": locale}
    async with page_of(browser, config, messages, "#colours=day", **options) as (page, _):
        if size is PHONE:
            await page.locator("#controls summary").click()
        await expect(page.locator("#day-choice")).to_be_visible()
        assert await page.evaluate(OUTSIDE) == []
        await no_violation(page)
        controls = await page.evaluate("(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(controls)")
        assert controls <= 0
        await page.locator("#table-button").click()
        await no_violation(page)
