"""Every test runs offline, every notebook is compared strictly, and the workers share the tests."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["strict_nbval"]

OFFLINE = Path(__file__).parent / "tests" / "offline"

# A Python that finds this folder on its path blocks the network when it starts: kernels, pytest's
# workers and whatever they start inherit it. This process has started already.
inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if str(OFFLINE) not in inherited:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(OFFLINE), *inherited]))
    runpy.run_path(str(OFFLINE / "sitecustomize.py"))


# What is one process or one long preparation stays in one worker; any other test goes anywhere.
UNDIVIDED = (".ipynb", "test_strict_nbval.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Hand out the notebooks first, which take longest, and then each test by itself."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file.endswith(UNDIVIDED) else nodeid

    return Scheduling(config, log)
