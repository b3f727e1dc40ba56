"""Every test runs offline, and every notebook is compared strictly."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

pytest_plugins = ["strict_nbval"]

OFFLINE = Path(__file__).parent / "tests" / "offline"

# A Python that finds this folder on its path blocks the network when it starts: kernels, pytest's
# workers and whatever they start inherit it. This process has started already.
inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if str(OFFLINE) not in inherited:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(OFFLINE), *inherited]))
    runpy.run_path(str(OFFLINE / "sitecustomize.py"))
