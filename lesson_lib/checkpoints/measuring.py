"""What compression saves and costs, by the size of the checkpoint: bytes, disk writes, time."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lesson_lib.checkpoints.archive import create_archive, put
from lesson_lib.checkpoints.codec import StoredCheckpoint, compress, decompress, encode
from lesson_lib.checkpoints.inventory import conversation, worked_context
from lesson_lib.json_text import JSONObject, to_json
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import AgentConnection, connect, create_schema, start_run
from lesson_lib.tickets import DATA

SIZES = (300, 400, 500, 700, 1_000, 2_000, 5_000, 10_000, 30_000, 100_000, 300_000, 900_000)
WORTH_IT = 0.9  # compression pays where a save writes a tenth less to the disk
SAVES = 40


@dataclass(frozen=True)
class Cost:
    """What one compression makes of a checkpoint of `size` bytes, as shares of the plain one's.

    `ratio` is that of the stored bytes. `written` is that of the bytes a save writes to the WAL:
    whole pages, however little of them changed. `relative_time` is the time of compressing and
    decompressing as a share of the time of a durable save of the plain checkpoint.
    """

    size: int
    compression: str
    ratio: float
    written: float
    relative_time: float


def state_of(size: int) -> RunState:
    """Return a made-up state whose body takes exactly `size` bytes, at least 300.

    It is the ticket and as much conversation as fits, the last entry cut; no embeddings.
    """
    ticket = worked_context(0)["ticket"]
    said = conversation(2 + size // 100)
    kept: list[JSONObject] = []
    room = size - _size(ticket, [{"role": "person", "text": ""}])
    for entry in said:
        needed = len(to_json(entry)) + len(", ")
        if needed > room:
            break
        kept.append(entry)
        room -= needed
    filler = " ".join(entry["text"] for entry in said[len(kept) :])[:room]
    return _state(ticket, [*kept, {"role": "person", "text": filler}])


def ratio(size: int, compression: str) -> float:
    """Return the stored bytes of a checkpoint of `size` bytes as a share of the plain ones."""
    return len(encode(state_of(size), compression).body) / size


def written(folder: Path, size: int, compression: str, saves: int = SAVES) -> int:
    """Return the bytes that so many checkpoints of `size` bytes write to the WAL."""
    with _archive(folder) as connection:
        wal = connection.path.with_name("agent.db-wal")
        before = wal.stat().st_size
        for stored in _versions(size, compression, saves):
            with connection:
                put(connection, stored)
        return wal.stat().st_size - before


def measure(folder: Path, sizes: Sequence[int] = SIZES, rounds: int = 7) -> list[Cost]:
    """Measure both compressions at each size; of the times the median of so many rounds.

    Args:
        folder: A folder on the disk that is to be measured. What is written there goes again.
        sizes: The sizes.
        rounds: How many times to measure.
    """
    found = []
    for size in sizes:
        plain = written(folder, size, "none")
        for name in ("gzip", "zstd"):
            share = written(folder, size, name) / plain
            seconds = _relative_time(folder, size, name, rounds)
            found.append(Cost(size, name, ratio(size, name), share, seconds))
    return found


def read_costs(path: Path = DATA / "compression.csv") -> list[Cost]:
    """Read what `make bench` measured on one machine: like `measure`."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Cost(
                int(row["size"]),
                row["compression"],
                *(float(row[name]) for name in ("ratio", "written", "relative_time")),
            )
            for row in csv.DictReader(file)
        ]


def pays_from(costs: Sequence[Cost], compression: str = "zstd", worth_it: float = WORTH_IT) -> int:
    """Return the smallest measured size from which on a save writes so small a share."""
    size = 0
    for cost in sorted(costs, key=lambda cost: cost.size, reverse=True):
        if cost.compression == compression:
            if cost.written > worth_it:
                break
            size = cost.size
    return size


def _relative_time(folder: Path, size: int, compression: str, rounds: int) -> float:
    plain = list(_versions(size, "none", rounds))
    shares = []
    with _archive(folder) as connection:
        for stored in plain:
            start = time.perf_counter()
            with connection:
                put(connection, stored)
            saved = time.perf_counter()
            decompress(compress(stored.body, compression), compression)
            shares.append((time.perf_counter() - saved) / (saved - start))
    return statistics.median(shares)


def _versions(size: int, compression: str, count: int) -> Iterator[StoredCheckpoint]:
    state = state_of(size)
    for version in range(count):
        yield encode(replace(state, version=version), compression)


@contextmanager
def _archive(folder: Path) -> Iterator[AgentConnection]:
    with (
        TemporaryDirectory(dir=folder) as scratch,
        closing(connect(Path(scratch, "agent.db"))) as connection,
    ):
        create_schema(connection)
        create_archive(connection)
        connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        start_run(
            connection,
            run_id="run-T104",
            ticket_id="T104",
            session="session-1",
            first_action="finish",
            context={},
        )
        yield connection


def _state(ticket: JSONObject, said: list[JSONObject]) -> RunState:
    context = to_json({"ticket": ticket, "conversation": said})
    return RunState("run-T104", "T104", "running", "finish", context, version=1)


def _size(ticket: JSONObject, said: list[JSONObject]) -> int:
    return len(encode(_state(ticket, said), "none").body)
