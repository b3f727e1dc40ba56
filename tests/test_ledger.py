"""The ledger: one whole line for each call, whoever writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lesson_lib.ledger import Ledger
from lesson_lib.processes import together

WRITE = """
import sys
from pathlib import Path
from lesson_lib.ledger import Ledger
print("ready")
input()
for _ in range(500):
    Ledger(Path(sys.argv[1])).write(sys.argv[2] * 50)
"""


def test_no_call_is_no_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.txt")
    assert (ledger.lines(), ledger.count("k")) == ([], 0)


def test_lines_stay_in_order_and_are_counted_whole(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.txt")
    for line in ("run:a", "run:ab", "run:a"):
        ledger.write(line)
    assert ledger.lines() == ["run:a", "run:ab", "run:a"]
    assert ledger.count("run:a") == 2


@pytest.mark.parametrize(
    "line", ["a\nb", "a\r\nb", "a\u2028b", "a\x85b", "a\x00b", "drei Äpfel 🍏"]
)
def test_a_call_is_one_line_whatever_its_key(tmp_path: Path, line: str) -> None:
    ledger = Ledger(tmp_path / "ledger.txt")
    ledger.write(line)
    assert (len(ledger.lines()), ledger.count(line)) == (1, 1)


def test_two_processes_never_mix_their_lines(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.txt")
    together([["-c", WRITE, ledger.path, letter] for letter in "ab"])
    assert sorted(ledger.lines()) == ["a" * 50] * 500 + ["b" * 50] * 500
