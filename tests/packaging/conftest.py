"""What a release consists of, built once for a test run."""

import os
from functools import partial
from pathlib import Path

import pytest

from tests.packaging.fresh import DIST_ENV, archive, build, install, install_linked, once

PUBLISHING = DIST_ENV in os.environ
# What is about to be published is tried in both forms and with today's dependencies; other runs download nothing.
FORMS = (".whl", ".tar.gz") if PUBLISHING else (".whl",)
INSTALL = install if PUBLISHING else install_linked


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of the test run share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "packaging"


@pytest.fixture(scope="session")
def dist(shared: Path) -> Path:
    """Folder with both archives of both distributions."""
    if PUBLISHING:
        return Path(os.environ[DIST_ENV]).resolve()
    return once(shared / "dist", build)


@pytest.fixture(scope="session", params=FORMS)
def alone(request: pytest.FixtureRequest, dist: Path, shared: Path) -> Path:
    """Python of a fresh environment with ``hexveil-dpcore`` and what it requires."""
    chosen = archive(dist, "hexveil_dpcore", request.param)
    return once(shared / f"alone{FORMS.index(request.param)}", partial(INSTALL, chosen)) / "bin" / "python"


@pytest.fixture(scope="session", params=FORMS)
def service(request: pytest.FixtureRequest, dist: Path, shared: Path) -> Path:
    """Folder of the commands of a fresh environment with ``hexveil`` and what it requires."""
    chosen = archive(dist, "hexveil", request.param)
    return once(shared / f"service{FORMS.index(request.param)}", partial(INSTALL, chosen)) / "bin"
