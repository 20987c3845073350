"""``python -m bench`` runs every benchmark, marks quick figures, and reports misuse before anything is measured."""

import inspect
import json
import pkgutil
import sys
from importlib import import_module

import pytest
from typer.testing import CliRunner, Result

import bench
from bench import mechanisms, range_intervals
from bench.__main__ import BENCHMARKS
from bench.__main__ import app as benchmarks

OPTIONS = ("target", "seconds", "rate")
"""Options of single benchmarks."""


def hexveil_bench(*arguments: str) -> Result:
    return CliRunner().invoke(benchmarks, arguments)


@pytest.fixture
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(quick: bool) -> None:
        raise AssertionError("measured")

    for module in (mechanisms, range_intervals):
        monkeypatch.setattr(module, "run", run)


def test_every_benchmark_of_the_source_tree_is_named_and_has_the_one_shape():
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


@pytest.mark.parametrize(("arguments", "variable"), [(["--quick"], ""), ([], "1")])
def test_quick_figures_are_marked(arguments, variable, monkeypatch):
    monkeypatch.setenv("HEXVEIL_BENCH_QUICK", variable)
    monkeypatch.setattr(mechanisms, "run", lambda quick: {"asked": quick})
    figures = json.loads(hexveil_bench("mechanisms", "--json", *arguments).stdout)
    assert figures == {"benchmark": "mechanisms", "quick": True, "asked": True}


def test_without_quick_the_full_size_is_run_and_said(monkeypatch):
    monkeypatch.delenv("HEXVEIL_BENCH_QUICK", raising=False)
    monkeypatch.setattr(mechanisms, "run", lambda quick: {"asked": quick})
    figures = json.loads(hexveil_bench("mechanisms").stdout)
    assert figures == {"benchmark": "mechanisms", "quick": False, "asked": False}


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sprint"], "choose one of city_windows, closing, dashboard"),
        (["mechanisms", "--fast"], "--fast"),
        (["mechanisms", "--seconds", "3"], "has no --seconds; leave it out"),
        (["fuzz", "--rate", "3"], "has no --rate; leave it out"),
        (["fuzz", "--target", "moon"], "choose one of messages-canonical"),
    ],
)
def test_misuse_is_exit_2_and_says_what_is_right(arguments, said):
    result = hexveil_bench(*arguments)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.usefixtures("nothing_is_measured")
def test_a_quick_that_is_neither_yes_nor_no_is_exit_2(monkeypatch):
    monkeypatch.setenv("HEXVEIL_BENCH_QUICK", "perhaps")
    assert hexveil_bench("mechanisms").exit_code == 2


def test_without_recordings_a_benchmark_says_so_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("HEXVEIL_DATA", str(tmp_path))
    result = hexveil_bench("defaults", "--json")
    assert result.exit_code == 0
    assert f"in {tmp_path}; let HEXVEIL_DATA name the folder" in json.loads(result.stdout)["skipped"]
    assert "skipped: no " in result.stderr


def test_a_benchmark_that_lacks_a_program_or_a_library_names_it(monkeypatch):
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
def test_figures_that_must_not_be_are_exit_1_after_they_were_printed(figure, what, monkeypatch):
    monkeypatch.setattr(mechanisms, "run", lambda quick: {figure: [what]})
    result = hexveil_bench("mechanisms", "--json")
    assert (result.exit_code, json.loads(result.stdout)[figure]) == (1, [what])
    assert what in result.stderr
