"""Numbers on cells and lines, and a spatial histogram as a heat map and as a layer of a GIS."""

import json
import shutil
import subprocess

import h3
import pytest
from playwright.async_api import Page, expect

from tests.stream.serve.browser import LAPTOP, fields, needs_chromium, no_violation, pixels, repainted
from tests.stream.serve.city import BUSY, city_config, window
from tests.stream.serve.made_windows import with_histograms
from tests.stream.serve.serving import fits_every_screen, page_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

CENTRE = h3.cell_to_latlng(BUSY)


@needs_chromium
async def test_a_histogram_is_a_heat_map_in_place_of_speeds_and_a_layer_for_gis(browser, tmp_path):
    messages, _ = with_histograms(tmp_path)
    config = city_config(tmp_path, **{"feed.name": "bus"})
    async with page_of(browser, config, messages, size=LAPTOP, color_scheme="light") as (page, client):
        before = await page.locator("#map").screenshot()
        await page.get_by_role("checkbox", name="Heat map of users").check()
        await expect(page.locator("#legend h3")).to_have_text("Users per km²")
        await page.wait_for_timeout(500)
        assert await page.locator("#map").screenshot() != before
        assert (await fields(page))["heat"] == "on"
        await fits_every_screen(page)
        await no_violation(page)
        async with repainted(page):
            await page.get_by_role("button", name="Dark colours").click()
        await no_violation(page)
        async with client.get("/api/v1/heat") as answer:
            assert answer.status == 400, "it has three, so one has to be named"
        path = tmp_path / "heat.geojson"
        async with client.get("/api/v1/heat?mechanism=ag") as answer:
            path.write_bytes(await answer.read())
    assert json.loads(path.read_text())["about"]["mechanism"] == "ag"
    if shutil.which("ogrinfo"):
        said = subprocess.run(["ogrinfo", "-so", "-al", path], capture_output=True, text=True, check=True).stdout
        assert "Feature Count: 4096" in said
        assert "density: Real" in said


@needs_chromium
async def test_large_cells_have_their_numbers_on_them_and_small_ones_none(browser, tmp_path):
    """Letters are as dark as the text; no class of speed in a window with one is."""
    config = city_config(tmp_path, **{"feed.name": "bus"})

    async def letters(page: Page) -> int:
        await page.wait_for_timeout(500)
        return sum(max(pixel) < 70 for pixel in await pixels(page, BUSY, 24))

    place = f"#at=12/{CENTRE[0]:.4f}/{CENTRE[1]:.4f}"
    async with page_of(browser, config, window(config, 0), place, size=LAPTOP, color_scheme="light") as (page, _):
        assert await letters(page) > 15
        for _ in range(2):
            await page.get_by_role("button", name="Zoom out").click()
        await page.wait_for_function("location.hash.includes('at=10.00/')")
        assert await letters(page) == 0
