"""``pip install hexveil-dpcore``: the mathematics with numpy and scipy, nothing of the service. What archives hold."""

import json
import tarfile
import zipfile

import pytest

from stream.local.kafka import REPO_ROOT
from tests.docs.pages import blocks
from tests.packaging.fresh import archive, run

EVERY_MODULE = """
import importlib, json, pkgutil, sys
from importlib.metadata import distributions, version
import dpcore
assert dpcore.__version__ == version("hexveil-dpcore"), version("hexveil-dpcore")
for module_info in pkgutil.walk_packages(dpcore.__path__, "dpcore."):
    importlib.import_module(module_info.name)
installed = sorted(distribution.name for distribution in distributions())
files = {getattr(module, "__file__", None) or "" for module in sys.modules.values()}
packages = {file.partition("site-packages/")[2].partition("/")[0] for file in files if "site-packages/" in file}
print(json.dumps([installed, sorted(packages)]))
"""


@pytest.mark.nightly
def test_every_module_imports_where_only_numpy_and_scipy_are(alone):
    installed, imported = json.loads(run(alone, "-c", EVERY_MODULE))
    assert set(installed) - {"pip", "setuptools"} == {"hexveil-dpcore", "numpy", "scipy"}
    assert {"dpcore", "numpy", "scipy"} <= set(imported)
    assert not {"stream", "aiokafka", "redis", "h3", "faust"} & set(imported)


@pytest.mark.nightly
def test_a_mechanism_is_one_import_away_and_the_readme_example_runs(alone):
    (example,) = blocks(REPO_ROOT / "dpcore" / "README.md")
    assert run(alone, "-c", example.text).startswith("[")
    lazily = "import dpcore; print(dpcore.noise.Noise().discrete_laplace(2, 1, size=3).size, 'mean' in dir(dpcore))"
    assert run(alone, "-c", lazily) == "3 True\n"
    everything = "from dpcore import *; print(spatial.__name__, mean.__name__)"
    assert run(alone, "-c", everything) == "dpcore.spatial dpcore.mean\n"


def test_both_distributions_hold_the_same_mathematics_licence_and_type_information(dist):
    contents = []
    for name in ("hexveil", "hexveil_dpcore"):
        with zipfile.ZipFile(archive(dist, name, ".whl")) as wheel:
            names = wheel.namelist()
            contents.append({path: wheel.read(path) for path in names if path.startswith("dpcore/")})
            (licence,) = [path for path in names if path.endswith("/licenses/LICENSE")]
            assert wheel.read(licence) == (REPO_ROOT / "LICENSE").read_bytes()
            tops = {path.partition("/")[0] for path in names if ".dist-info" not in path}
            assert tops <= {"dpcore", "stream", "hexveil.py"}
            assert all(f"{top}/py.typed" in names for top in tops - {"hexveil.py"})
    assert contents[0] == contents[1]
    assert all(path.endswith((".py", "/py.typed")) for path in contents[0]), sorted(contents[0])


def test_the_wheel_holds_the_dashboard_and_not_its_sources(dist):
    with zipfile.ZipFile(archive(dist, "hexveil", ".whl")) as wheel:
        contents = {name: wheel.read(name) for name in wheel.namelist() if name.startswith("stream/serve/")}
    files = [path for path in (REPO_ROOT / "stream" / "serve" / "static").rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        assert contents[path.relative_to(REPO_ROOT).as_posix()] == path.read_bytes()
    assert not [name for name in contents if "/dashboard/" in name]


def test_a_source_archive_holds_what_its_tests_and_its_licence_need(dist):
    with tarfile.open(archive(dist, "hexveil", ".tar.gz")) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    wanted = {"LICENSE", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "Makefile", "tests/conftest.py"}
    assert wanted <= names, wanted - names
    with tarfile.open(archive(dist, "hexveil_dpcore", ".tar.gz")) as source:
        assert {"LICENSE", "README.md", "py.typed"} <= {name.partition("/")[2] for name in source.getnames()}
