"""No test can reach beyond this machine, nor can a process that it starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

OUTSIDE = "192.0.2.1"  # set aside for documentation: nobody answers there


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda own: own.connect((OUTSIDE, 80)), id="connect"),
        pytest.param(lambda own: own.connect_ex((OUTSIDE, 80)), id="connect_ex"),
        pytest.param(lambda own: own.sendto(b"x", (OUTSIDE, 53)), id="sendto"),
        pytest.param(lambda _: socket.getaddrinfo("example.org", 443), id="getaddrinfo"),
        pytest.param(lambda _: socket.getaddrinfo(b"127.example.org", 443), id="bytes"),
        pytest.param(lambda _: socket.gethostbyname("example.org"), id="gethostbyname"),
        pytest.param(lambda _: socket.gethostbyaddr("example.org"), id="gethostbyaddr"),
    ],
)
def test_this_process_cannot_look_outside(call: Callable[[socket.socket], object]) -> None:
    with (
        socket.socket(type=socket.SOCK_DGRAM) as own,
        pytest.raises(PermissionError, match=r"was refused: tests run offline"),
    ):
        call(own)


@pytest.mark.skipif(not hasattr(socket.socket, "sendmsg"), reason="this system has no sendmsg")
def test_a_message_cannot_leave() -> None:
    with (
        socket.socket(type=socket.SOCK_DGRAM) as own,
        pytest.raises(PermissionError, match=r"socket.sendmsg to 192\.0\.2\.1"),
    ):
        own.sendmsg([b"x"], [], 0, (OUTSIDE, 53))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_can_be_reached(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = (host, server.getsockname()[1])
        with socket.create_connection(address, timeout=10) as client:
            assert client.getpeername() == server.getsockname()


def test_a_child_process_is_offline_and_runs_the_module_that_is_shadowed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the shadowed one ran')", encoding="utf-8")
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)])
    code = f"import socket; socket.create_connection(({OUTSIDE!r}, 80), timeout=5)"
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.stdout == "the shadowed one ran\n"
    assert f"{OUTSIDE} was refused: tests run offline" in child.stderr
