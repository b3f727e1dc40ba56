"""Print how large the project is: lines of each part, the longest modules, tests of each suite."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from outputs import ROOT

PACKAGE = ROOT / "lesson_lib"
PARTS = {"labs/checks": "checks", "labs": "labs", "tickets": "example agent", "": "library"}
SUITES = {"make test": "not prove", "make prove": "prove"}


def part(module: Path) -> str:
    """Return which part of the package a module belongs to."""
    inside = module.relative_to(PACKAGE).as_posix()
    return next(name for folder, name in PARTS.items() if inside.startswith(folder))


def collected(suite: str) -> str:
    """Return what pytest says of how many tests a suite has."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", suite]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[-1].strip("= ")


def main() -> None:
    """Print the counts."""
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    parts: Counter[str] = Counter()
    for module, count in lines.items():
        parts[part(module)] += count
    for name, count in parts.most_common():
        print(f"{count:6,} lines of {name}")
    for module, count in Counter(lines).most_common(3):
        print(f"{count:6,} lines, of the longest, in {module.relative_to(ROOT).as_posix()}")
    for command, suite in SUITES.items():
        print(f"{command}: {collected(suite)}")


if __name__ == "__main__":
    main()
