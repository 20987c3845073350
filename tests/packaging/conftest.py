"""What a release consists of, built once for a test run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.packaging.fresh import DIST_ENV, archive, build, environment, once

# Every other run tries the wheels; what is about to be published is tried in both forms.
FORMS = (".whl", ".tar.gz") if DIST_ENV in os.environ else (".whl",)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of the test run share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "packaging"


@pytest.fixture(scope="session")
def dist(shared: Path) -> Path:
    """Folder with both archives of both distributions."""
    if DIST_ENV in os.environ:
        return Path(os.environ[DIST_ENV]).resolve()
    return once(shared / "dist", build)


@pytest.fixture(scope="session", params=FORMS)
def alone(request: pytest.FixtureRequest, dist: Path, shared: Path) -> Path:
    """Python of a fresh environment with ``hexveil-dpcore`` and what it requires."""
    chosen = archive(dist, "hexveil_dpcore", request.param)
    return once(shared / f"alone{FORMS.index(request.param)}", environment(chosen)) / "bin" / "python"


@pytest.fixture(scope="session", params=FORMS)
def service(request: pytest.FixtureRequest, dist: Path, shared: Path) -> Path:
    """Folder of the commands of a fresh environment with ``hexveil`` and what it requires."""
    chosen = archive(dist, "hexveil", request.param)
    return once(shared / f"service{FORMS.index(request.param)}", environment(chosen)) / "bin"
