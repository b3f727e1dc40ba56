"""A fresh machine gets what the code needs: pins, the choice of a Python, the README's commands."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DECLARED = [Requirement(line) for line in PROJECT["dependencies"]]
DECLARED_FOR_TESTS = [Requirement(line) for line in PROJECT["optional-dependencies"]["test"]]
LINES = [
    line
    for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    if not line.lstrip().startswith("#")
]
PINS = [Requirement(line) for line in LINES if line != "-e ."]
README = (ROOT / "README.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
LATER_MODULES = {"compression"}  # of the standard library from 3.14 on


def pinned(name: str) -> str | None:
    """Return the version that requirements.txt pins."""
    for pin in PINS:
        if canonicalize_name(pin.name) == canonicalize_name(name):
            return next(iter(pin.specifier)).version
    return None


def fits(need: Requirement) -> bool:
    """Return whether the pinned version is one that was asked for."""
    version = pinned(need.name)
    return version is not None and need.specifier.contains(version, prereleases=True)


def test_every_line_pins_one_version() -> None:
    assert LINES.count("-e .") == 1
    assert [str(pin) for pin in PINS if [s.operator for s in pin.specifier] != ["=="]] == []
    names = [canonicalize_name(pin.name) for pin in PINS]
    assert sorted(set(names)) == sorted(names), "a package is pinned twice"


@pytest.mark.parametrize("declared", DECLARED + DECLARED_FOR_TESTS, ids=lambda need: need.name)
def test_a_declared_dependency_is_pinned_in_its_range(declared: Requirement) -> None:
    assert fits(declared), (
        f"pyproject.toml asks for {declared}, requirements.txt pins {pinned(declared.name)}:"
        " compile it again, the command stands in its first lines"
    )


def test_what_the_pinned_packages_need_is_pinned() -> None:
    missing = []
    for pin in PINS:
        try:
            installed = metadata.distribution(pin.name)
        except metadata.PackageNotFoundError:
            continue  # for another system
        if installed.version != pinned(pin.name):
            continue  # a run with the newest packages
        for need in map(Requirement, installed.requires or []):
            wanted = need.marker is None or need.marker.evaluate({"extra": ""})
            if wanted and not fits(need):
                missing.append(f"{pin} needs {need}")
    assert missing == []


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of the modules that a file imports, or may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write imports in full"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def trees(path: Path) -> Iterator[ast.AST]:
    """Yield what a Python file or the code cells of a notebook say."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        yield ast.parse(text)
    else:
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "code":
                yield ast.parse("".join(cell["source"]))


@pytest.mark.parametrize(
    ("folder", "pattern", "allowed"),
    [
        ("lesson_lib", "*.py", DECLARED),
        ("notebooks", "*.ipynb", DECLARED),
        ("tools", "*.py", DECLARED + DECLARED_FOR_TESTS),
        ("tests", "*.py", DECLARED + DECLARED_FOR_TESTS),
    ],
)
def test_what_is_imported_is_declared(
    folder: str, pattern: str, allowed: list[Requirement]
) -> None:
    files = sorted((ROOT / folder).rglob(pattern))
    own = {path.stem for place in ("tests", "tools") for path in (ROOT / place).iterdir()}
    declared = {canonicalize_name(need.name) for need in allowed}
    providers = metadata.packages_distributions()
    undeclared = set()
    for path in files:
        names = {name for tree in trees(path) for name in imported(tree)}
        # A package in a folder that many share is declared by its whole name: backports.zstd.
        shared = {name.split(".")[0] for name in names if canonicalize_name(name) in declared}
        for name in {name.split(".")[0] for name in names} - shared:
            if (
                name in sys.stdlib_module_names | LATER_MODULES
                or name in own
                or name == "lesson_lib"
            ):
                continue
            if not declared & {canonicalize_name(each) for each in providers.get(name, [])}:
                undeclared.add(f"{path.relative_to(ROOT).as_posix()} imports {name}")
    assert files
    assert undeclared == set()


def test_windows_can_check_out_every_file() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("This is no checkout: git cannot say which files belong to it.")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = listed.stdout.split("\0")
    assert "Makefile" in names
    assert [name for name in names if re.search(r'[<>:"|?*\\]', name)] == []


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, re.MULTILINE))


def test_the_commands_of_the_readme_are_targets() -> None:
    code = "\n".join(re.findall(r"^```.*?^```|`[^`\n]+`", README, re.MULTILINE | re.DOTALL))
    commands = set(re.findall(r"\bmake ([a-z]+)", code))
    assert {"lab", "test"} <= commands <= targets()


def test_the_table_of_the_readme_lists_the_lessons() -> None:
    rows = re.findall(r"^\|.*\]\(notebooks/(\d\d_\w+\.ipynb)\)", README, re.MULTILINE)
    assert rows == sorted(path.name for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))


@dataclass(frozen=True)
class Machine:
    """A machine with a copy of the Makefile, and only the Pythons that a test puts there."""

    checkout: Path
    programs: Path

    def install(self, name: str, version: str) -> None:
        """Put a stand-in for a Python there, which notes what it is asked to do."""
        self.script(
            name,
            f"""case "$1 $2" in
                "-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python;;
                "-m pip") [ ! -e offline ];;
                "-c "*) echo {version};;
                "-I -c") shift; PYTHONPATH="{ROOT}" exec "{sys.executable}" -P "$@";;
            esac""",
        )

    def script(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        path.chmod(0o755)

    def make(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Make the environment and nothing else."""
        make = shutil.which("make")
        assert make
        return subprocess.run(
            [make, ".venv/recipe", *arguments],
            cwd=self.checkout,
            env={"PATH": str(self.programs), **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def chosen(self, *arguments: str, **variables: str) -> str | None:
        """Return the Python that .venv was made with, None if it was left as it was."""
        done = self.make(*arguments, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        making = re.search(r"Making \.venv with (\S+),", done.stdout)
        return making[1] if making else None


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if os.name == "nt" or not shutil.which("make"):
        pytest.skip("The Makefile is for Linux and macOS; this machine has no make.")
    made = Machine(tmp_path / "a check out", tmp_path / "bin")
    made.checkout.mkdir()
    made.programs.mkdir()
    for name in ("cat", "cmp", "cp", "head", "mkdir"):
        (made.programs / name).symlink_to(shutil.which(name) or name)
    (made.checkout / "Makefile").write_text(MAKEFILE, "utf-8")
    for name in ("requirements.txt", "pyproject.toml"):
        (made.checkout / name).write_text(f"# {name}\n", "utf-8")
    # The package that a stand-in has installed is the one under test, so this is its folder.
    (made.checkout / "lesson_lib").symlink_to(ROOT / "lesson_lib")
    return made


@pytest.mark.parametrize(
    ("pythons", "found"),
    [
        ({"python3": "3.11.9"}, "Found: python3 is Python 3.11.9;"),
        ({"python3": "3.15.0"}, "Found: python3 is Python 3.15.0;"),
        (
            {"python3": "3.1.2", "python": "2.7.18"},
            "Found: python3 is Python 3.1.2; python is Python 2.7.18;",
        ),
        ({}, "Found: no Python at all;"),
    ],
)
def test_without_a_suitable_python_make_says_what_to_do(
    machine: Machine, pythons: dict[str, str], found: str
) -> None:
    for name, version in pythons.items():
        machine.install(name, version)
    refused = machine.make()
    assert refused.returncode == 2
    assert found in refused.stderr
    assert "Install Python 3.13" in refused.stderr
    assert not (machine.checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"python3.12": "3.12.0"}, "python3.12"),
        ({"python3": "3.14.6"}, "python3"),
        ({"python3": "3.11.9", "python": "3.12.4"}, "python"),
        ({"python3": "3.12.1", "python3.13": "3.13.0", "python3.14": "3.14.0"}, "python3.13"),
    ],
)
def test_make_chooses_a_suitable_python(
    machine: Machine, pythons: dict[str, str], chosen: str
) -> None:
    for name, version in pythons.items():
        machine.install(name, version)
    assert machine.chosen() == chosen


def test_make_passes_over_a_broken_shim(machine: Machine) -> None:
    machine.script("python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    machine.install("python3.12", "3.12.1")
    assert machine.chosen() == "python3.12"


def test_make_keeps_to_the_python_that_was_named(machine: Machine) -> None:
    machine.install("python3.13", "3.13.0")
    machine.install("mine", "3.12.0")
    assert machine.chosen() == "python3.13"
    assert machine.chosen("PYTHON=mine") == "mine"
    assert machine.chosen() is None
    assert machine.chosen(PYTHON="python3.13") == "python3.13"


def test_make_leaves_a_good_environment_alone(machine: Machine) -> None:
    machine.install("python3", "3.12.0")
    machine.chosen()
    assert machine.chosen() is None


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml"])
def test_make_replaces_an_environment_that_is_out_of_date(machine: Machine, name: str) -> None:
    machine.install("python3", "3.12.0")
    machine.chosen()
    (machine.checkout / name).write_text("# changed\n", "utf-8")
    assert machine.chosen() == "python3"


def test_make_replaces_an_environment_whose_python_is_gone(machine: Machine) -> None:
    machine.install("python3", "3.12.0")
    machine.chosen()
    (machine.checkout / ".venv" / "bin" / "python").unlink()
    assert machine.chosen() == "python3"


def test_make_replaces_an_environment_that_was_made_for_another_folder(machine: Machine) -> None:
    machine.install("python3", "3.12.0")
    machine.chosen()
    (machine.checkout / "lesson_lib").unlink()
    (machine.checkout / "lesson_lib").mkdir()
    assert machine.chosen() == "python3"


def test_make_replaces_an_environment_that_is_half_made(machine: Machine) -> None:
    machine.install("python3", "3.12.0")
    (machine.checkout / "offline").touch()
    assert machine.make().returncode == 2
    (machine.checkout / "offline").unlink()
    assert machine.chosen() == "python3"
