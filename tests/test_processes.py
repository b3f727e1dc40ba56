"""Child processes: told and heard, let go together, killed; how each ended is said in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from lesson_lib.errors import ChildError
from lesson_lib.processes import Child, ChildEnd, run_python, together

DYING = """
import atexit, sys
from lesson_lib.processes import die
atexit.register(print, "cleaned up by atexit")
try:
    print("before: größer", end="")
    die(sys.argv[1])
finally:
    print("cleaned up by finally")
"""
DIED = ChildEnd("died without cleanup", "")


def test_a_child_that_lives_says_what_it_printed() -> None:
    code = "import sys; print('größer 🔧', sys.argv[1:])"
    assert run_python(code, "a b", Path("c")) == ChildEnd("finished", "größer 🔧 ['a b', 'c']\n")


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_dying_child_cleans_nothing_up_and_keeps_what_it_printed(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    assert run_python(DYING, how) == ChildEnd("died without cleanup", "before: größer")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('no such step')", "ValueError: no such step"),
        ("raise LookupError('no such\\nthing')", "thing"),
        ("import sys; sys.exit('out of paper')", "out of paper"),
        ("import os; os._exit(3)", "exit status 3"),
        ("import os; os.abort()", "exit status"),
    ],
)
def test_a_child_that_fails_otherwise_is_an_error_with_its_reason(code: str, words: str) -> None:
    with pytest.raises(ChildError, match=f"the child process failed: .*{words}"):
        run_python(code)


def test_a_child_may_complain_at_length() -> None:
    code = "import sys; sys.stderr.write('x' * 300_000); print('done')"
    assert run_python(code) == ChildEnd("finished", "done\n")


def test_a_child_answers_line_by_line_and_keeps_the_rest_for_its_end() -> None:
    with Child("-c", "print(input().upper(), flush=True); print('two'); print('three')") as child:
        child.tell("one")
        assert (child.read(), child.read()) == ("ONE", "two")
        assert child.end() == ChildEnd("finished", "three\n")


def test_a_child_that_died_can_still_be_told_something() -> None:
    code = "from lesson_lib.processes import die; print('last', flush=True); die()"
    with Child("-c", code) as child:
        assert (child.read(), child.read()) == ("last", "")
        child.tell()
        assert child.end() == DIED


def test_a_child_that_is_killed_from_outside_died_without_cleanup() -> None:
    with Child("-c", "print('ready', flush=True); input()") as child:
        assert child.read() == "ready"
        child.kill()
        assert child.end() == DIED


def test_no_child_outlives_its_block(tmp_path: Path) -> None:
    code = "import sys; print('ready', flush=True); sys.stdin.readline(); open(sys.argv[1], 'w')"
    with Child("-c", code, tmp_path / "alive") as child:
        assert child.read() == "ready"
    assert list(tmp_path.iterdir()) == []
    assert child._process.returncode is not None


def test_children_are_let_go_when_all_are_ready(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
Path(sys.argv[1], sys.argv[2]).touch()
print("ready", flush=True)
input()
print(sorted(path.name for path in Path(sys.argv[1]).iterdir()))
"""
    ends = together([["-c", code, tmp_path, name] for name in "ab"])
    assert ends == [ChildEnd("finished", "['a', 'b']\n")] * 2


def test_children_that_do_not_get_ready_are_not_let_go() -> None:
    with pytest.raises(ChildError, match="did not get ready: it finished"):
        together([["-c", "print('steady')"]])
    with pytest.raises(ChildError, match="the child process failed: LookupError: thing"):
        together([["-c", "print('ready'); input(); raise LookupError('thing')"]])


def test_a_file_beside_the_learner_is_not_imported_by_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sqlite3.py").write_text("raise SystemExit('not the real one')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run_python("import lesson_lib.sqlite").ended == "finished"
