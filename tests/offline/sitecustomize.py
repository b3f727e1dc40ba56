"""Refuse, in any Python that starts with this folder on its path, to look beyond this machine."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Raise an error, before any packet is sent, where the address is not this machine's."""
    match event, arguments:
        case (("socket.getaddrinfo" | "socket.gethostbyname" | "socket.gethostbyaddr"), (host, *_)):
            pass
        case (("socket.connect" | "socket.sendto" | "socket.sendmsg"), (_, (host, *_))):
            pass
        case _:  # no network at all, or the path of a Unix socket
            return
    name = host.decode() if isinstance(host, bytes) else host
    if not isinstance(name, str) or name in ("", "localhost", "::1"):
        return
    if name.startswith("127.") and name.replace(".", "").isdigit():
        return
    raise PermissionError(
        f"{event} to {name} was refused: tests run offline and may reach only this machine"
        " (127.0.0.0/8, ::1, localhost); take the call out, or let the test start its own server."
    )


sys.addaudithook(refuse)

if __name__ == "sitecustomize":
    # Python imports one module of this name; the one that stands behind this must still run.
    here = os.path.dirname(os.path.abspath(__file__))
    behind = [folder for folder in sys.path if os.path.abspath(folder) != here]
    shadowed = PathFinder.find_spec("sitecustomize", behind)
    if shadowed and shadowed.loader:
        shadowed.loader.exec_module(module_from_spec(shadowed))
