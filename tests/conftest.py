"""What the tests of the store and the agent begin with: a database, a connection, the tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from store_parts import new_database

from lesson_lib.ledger import Ledger
from lesson_lib.sqlite import AgentConnection, connect
from lesson_lib.tickets import Tools, read_runbooks


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return new_database(tmp_path)


@pytest.fixture
def connection(database: Path) -> Iterator[AgentConnection]:
    with closing(connect(database)) as opened:
        yield opened


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(read_runbooks(), Ledger(tmp_path / "ledger.txt"))
