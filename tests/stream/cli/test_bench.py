"""``hexveil bench`` runs every benchmark, marks quick figures, and reports misuse before anything is measured."""

from __future__ import annotations

import inspect
import json
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import bench
from bench import papers, scaling, split_regret
from stream.cli import app
from stream.cli.bench import BENCHMARKS, PARTS

OPTIONS = ("target", "seconds", "rate")
"""Options of single benchmarks."""


def hexveil_bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.fixture
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(quick: bool) -> None:
        raise AssertionError("measured")

    for module in (scaling, split_regret):
        monkeypatch.setattr(module, "run", run)


def test_every_benchmark_of_the_source_tree_is_named_and_has_the_one_shape() -> None:
    modules = {
        module_info.name: import_module(f"bench.{module_info.name}")
        for module_info in pkgutil.iter_modules(bench.__path__)
    }
    runs = {name: module.run for name, module in modules.items() if hasattr(module, "run")}
    assert set(runs) == set(BENCHMARKS)
    for name, run in runs.items():
        quick, *options = inspect.signature(run).parameters
        assert quick == "quick"
        assert options == [option for option in OPTIONS if f"--{option}" in BENCHMARKS[name]]
    drawing = {name for name in runs if hasattr(modules[name], "plot")}
    assert drawing == {name for name, what in BENCHMARKS.items() if "--plot" in what}


def test_every_part_of_the_papers_runs_alone_too() -> None:
    modules = {name: import_module(f"bench.{name}") for name in PARTS}
    assert {name.removeprefix("papers.") for name in PARTS} == set(papers.PARTS)
    assert {tuple(inspect.signature(module.run).parameters) for module in modules.values()} == {("quick",)}
    assert all(hasattr(module, "plot") for module in modules.values())


def test_a_part_is_measured_and_drawn_by_its_dotted_name(tmp_path: Path) -> None:
    result = hexveil_bench("papers.cdf", "--quick", "--json", "--plot", str(tmp_path))
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert (figures["benchmark"], round(figures["best_branching"], 1)) == ("papers.cdf", 16.8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["papers-cdf-band.svg", "papers-cdf.svg"]
    for cell in figures["released"].values():
        assert all(
            low <= value <= high for low, value, high in zip(cell["low"], cell["value"], cell["high"], strict=True)
        )


@pytest.mark.parametrize(("arguments", "variable"), [(["--quick"], ""), ([], "1")])
def test_quick_figures_are_marked_and_drawn_where_they_are_wanted(
    arguments: list[str], variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEXVEIL_BENCH_QUICK", variable)
    result = hexveil_bench("scaling", "--json", "--plot", str(tmp_path), *arguments)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert (figures["benchmark"], figures["quick"]) == ("scaling", True)
    assert sorted(figures["scaling"]["users"]) == ["1", "10"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scaling.svg", "suppression.svg"]


def test_without_quick_the_full_size_is_run_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEXVEIL_BENCH_QUICK", raising=False)
    monkeypatch.setattr(scaling, "run", lambda quick: {"asked": quick})
    figures = json.loads(hexveil_bench("scaling").stdout)
    assert figures == {"benchmark": "scaling", "quick": False, "asked": False}


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sprint"], "choose one of city_windows, closing, dashboard"),
        (["split_regret", "--plot", "."], "draws nothing; leave out --plot"),
        (["scaling", "--plot", "nowhere"], "nowhere"),
        (["scaling", "--fast"], "--fast"),
        (["scaling", "--seconds", "3"], "has no --seconds; leave it out"),
        (["fuzz", "--rate", "3"], "has no --rate; leave it out"),
        (["fuzz", "--target", "moon"], "choose one of messages-canonical"),
    ],
)
def test_misuse_is_exit_2_and_says_what_is_right(arguments: list[str], said: str) -> None:
    result = hexveil_bench(*arguments)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.usefixtures("nothing_is_measured")
def test_a_quick_that_is_neither_yes_nor_no_is_exit_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXVEIL_BENCH_QUICK", "perhaps")
    assert hexveil_bench("scaling").exit_code == 2


def test_without_recordings_a_benchmark_says_so_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEXVEIL_DATA", str(tmp_path))
    for name in ("range_intervals", "resolution", "spatial_tuning", "split_regret"):
        result = hexveil_bench(name, "--json")
        assert result.exit_code == 0
        assert f"in {tmp_path}; let HEXVEIL_DATA name the folder" in json.loads(result.stdout)["skipped"]
        assert "skipped: no " in result.stderr


def test_a_benchmark_that_lacks_a_program_or_a_library_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = hexveil_bench("dashboard", "--quick")
    assert (result.exit_code, "apt-get install chromium-headless-shell" in result.stderr) == (3, True)
    monkeypatch.delitem(sys.modules, "bench.dashboard")
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    result = hexveil_bench("dashboard", "--quick")
    assert (result.exit_code, "needs playwright" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("figure", "what"), [("regressions", "noise took 4 times its plain work"), ("violations", "a window twice")]
)
def test_figures_that_must_not_be_are_exit_1_after_they_were_printed(
    figure: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "run", lambda quick: {figure: [what]})
    result = hexveil_bench("scaling", "--json")
    assert (result.exit_code, json.loads(result.stdout)[figure]) == (1, [what])
    assert what in result.stderr
