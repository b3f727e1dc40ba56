"""Sessions of any agent, each in a process that may be killed.

One process imports the agent and forks a child for each session, which takes milliseconds; where
nothing can be forked, on Windows, each session is a Python that starts anew.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from lesson_lib.errors import ChildError
from lesson_lib.processes import Child, run_child
from lesson_lib.sweep.points import Points, read_points

THIS = ("-c", "from lesson_lib.sweep.sessions import main; main()")


def run_session(
    entry: str, folder: Path, session: str, die_at: int | str | None = None
) -> list[str]:
    """Run a session in a child process and return the crash points that it passed.

    Args:
        entry: What starts or resumes the agent, as `module:function`. It is called with the
            folder, the session and the `point` for its hooks.
        folder: For the agent's files; made if missing.
        session: Its name, such as `session-1`; the points are kept in `session-1.points`.
        die_at: The number or the label of the point to die at; None to live.

    Raises:
        ChildError: It failed, did not come to `die_at`, or died without being asked to.
    """
    folder.mkdir(exist_ok=True)
    file = folder / f"{session}.points"
    file.unlink(missing_ok=True)
    path = [os.path.abspath(each) for each in sys.path]  # noqa: PTH100  ("" is this folder)
    request = json.dumps([path, entry, str(folder.resolve()), session, die_at])
    ended = _ask(request) if hasattr(os, "fork") else run_child([*THIS, request]).ended
    passed = read_points(file)
    if ended not in ("finished", "died without cleanup"):
        raise ChildError(f"{session} failed: {ended}")
    died = ended != "finished"
    if died != (die_at is not None) or (died and die_at not in (len(passed), *passed[-1:])):
        wish = "live" if die_at is None else f"die at {die_at!r}"
        raise ChildError(f"{session} was to {wish}, and did not")
    return passed


def _ask(request: str) -> str:
    server = _server()
    server.tell(request)
    session = server.read()
    try:
        answer = server.read()
    except BaseException:  # Ctrl-C: nobody waits for this session any more
        with suppress(ProcessLookupError):
            os.killpg(int(session), signal.SIGKILL)
        server.read()
        raise
    if not answer:
        _server.cache_clear()
        raise ChildError("the process that starts the sessions has died: try again")
    return answer


@cache
def _server() -> Child:
    server = Child(*THIS)
    atexit.register(_end, server)  # when this process is killed, its input ends, and so does it
    return server


def _end(server: Child) -> None:
    # Not killed: a session that lives on would write into the files of the next one.
    with server, suppress(ChildError, ValueError):
        server.end()


def main() -> None:
    """Be the process that forks: read one session after the other, and answer how each ended."""
    if sys.argv[1:]:
        _work(*json.loads(sys.argv[1]))
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends a session
    import_module("lesson_lib.sqlite")  # a child has at once what is loaded here
    for line in sys.stdin:
        request = json.loads(line)
        # Another's module is imported by each session anew: its author may be mending it.
        if request[1].startswith("lesson_lib."):
            with suppress(Exception):  # the child will say what is wrong
                _function(*request[:2])
        with TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                _be_a_session(request, said.fileno())
            with suppress(OSError):  # the child does it too: whoever comes first
                os.setpgid(child, child)
            print(child, flush=True)
            os.waitpid(child, 0)
            with suppress(ProcessLookupError):  # what the session has started ends with it
                os.killpg(child, signal.SIGKILL)
            said.seek(0)
            print(said.read().decode() or "died without cleanup", flush=True)


def _be_a_session(request: list[Any], answers: int) -> NoReturn:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    answer = "finished"
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # requests are not for the agent to read
    os.dup2(2, 1)  # what the agent prints is not an answer
    try:
        _work(*request)
    except BaseException as error:  # noqa: BLE001  (whatever it is, the parent is told)
        answer = f"{type(error).__name__}: {error}".splitlines()[0]
    os.write(answers, answer.encode())
    os._exit(0)


def _work(path: list[str], entry: str, folder: str, session: str, die_at: int | str | None) -> None:
    function = _function(path, entry)
    with Points(Path(folder, f"{session}.points"), die_at) as point:
        function(Path(folder), session, point)


def _function(path: list[str], entry: str) -> Any:
    sys.path += [each for each in path if each not in sys.path]
    module, _, name = entry.partition(":")
    return getattr(import_module(module), name)
