"""What compression saves and costs: bytes, disk writes, time, and the memory for a bomb."""

from __future__ import annotations

import csv
import statistics
import time
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lesson_lib.checkpoints import codec
from lesson_lib.checkpoints.archive import create_archive, put
from lesson_lib.checkpoints.codec import StoredCheckpoint, decompress, encode
from lesson_lib.errors import CheckpointError
from lesson_lib.json_text import JSONObject, to_json
from lesson_lib.labs.checkpoint_format.inventory import conversation, worked_context
from lesson_lib.model import RunState
from lesson_lib.sqlite import AgentConnection, connect, create_schema, start_run
from lesson_lib.tickets import DATA
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

SIZES = (300, 400, 500, 700, 1_000, 2_000, 5_000, 10_000, 30_000, 100_000, 300_000, 900_000)
WORTH_IT = 0.9  # compression pays where a save writes a tenth less to the disk
SAVES = 40


@dataclass(frozen=True)
class Cost:
    """What one compression makes of a checkpoint of `size` bytes, as shares of the plain one's.

    `ratio` is that of the stored bytes, `written` that of the bytes a save writes to the WAL, in
    whole pages. `relative_time` is the time to compress and back over that of a durable save.
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
    said = conversation(2 + size // 100)
    kept: list[JSONObject] = []
    nothing_said = encode(_state([{"role": "person", "text": ""}]), TICKET_SCHEMA, "none")
    room = size - len(nothing_said.body)
    for entry in said:
        needed = len(to_json(entry)) + len(", ")
        if needed > room:
            break
        kept.append(entry)
        room -= needed
    filler = " ".join(entry["text"] for entry in said[len(kept) :])[:room]
    return _state([*kept, {"role": "person", "text": filler}])


def sizes(state: RunState) -> dict[str, int]:
    """Return the stored bytes of a state under each compression."""
    return {name: len(encode(state, TICKET_SCHEMA, name).body) for name in codec.COMPRESSIONS}


def written(folder: Path, size: int, compression: str, saves: int = SAVES) -> int:
    """Return the bytes that so many checkpoints of `size` bytes write to the WAL."""
    with _archive(folder) as connection:
        wal = connection.path.with_name("agent.db-wal")
        before = wal.stat().st_size
        for stored in _versions(size, compression, saves):
            with connection:
                put(connection, stored)
        return wal.stat().st_size - before


def measure(folder: Path, at: Sequence[int] = SIZES, rounds: int = 7) -> list[Cost]:
    """Measure both compressions at each size, on the disk of a folder, the time in rounds."""
    found = []
    for size in at:
        plain = written(folder, size, "none")
        stored = sizes(state_of(size))
        for name in ("gzip", "zstd"):
            share = written(folder, size, name) / plain
            seconds = _relative_time(folder, size, name, rounds)
            found.append(Cost(size, name, stored[name] / size, share, seconds))
    return found


def read_costs(path: Path = DATA / "compression.csv") -> list[Cost]:
    """Read what `make bench` measured on one machine: like `measure`."""
    with path.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return [Cost(int(size), name, *map(float, shares)) for size, name, *shares in rows]


def pays_from(costs: Sequence[Cost]) -> int:
    """Return the smallest measured size from which on zstd is worth it; 0 for none."""
    own = [cost for cost in costs if cost.compression == "zstd"]
    too_small = max((cost.size for cost in own if cost.written > WORTH_IT), default=0)
    return min((cost.size for cost in own if cost.size > too_small), default=0)


def bomb(megabytes: int) -> bytes:
    """Return gzip bytes that would grow to so many million zeros, a thousandth of them long."""
    packer, zeros = zlib.compressobj(wbits=31), bytes(1_000_000)
    return b"".join(packer.compress(zeros) for _ in range(megabytes)) + packer.flush()


def open_measured(body: bytes) -> tuple[str, int]:
    """Decompress gzip bytes; return the refusal, if any, and the bytes of memory that it took."""
    refusal = ""
    tracemalloc.start()
    try:
        decompress(body, "gzip")
    except CheckpointError as error:
        refusal = str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return refusal, peak


def _relative_time(folder: Path, size: int, compression: str, rounds: int) -> float:
    shares = []
    with _archive(folder) as connection:
        for stored in _versions(size, "none", rounds):
            start = time.perf_counter()
            with connection:
                put(connection, stored)
            saved = time.perf_counter()
            decompress(codec.compress(stored.body, compression), compression)
            shares.append((time.perf_counter() - saved) / (saved - start))
    return statistics.median(shares)


def _versions(size: int, compression: str, count: int) -> Iterator[StoredCheckpoint]:
    state = state_of(size)
    for version in range(count):
        yield encode(replace(state, version=version), TICKET_SCHEMA, compression)


@contextmanager
def _archive(folder: Path) -> Iterator[AgentConnection]:
    with (
        TemporaryDirectory(dir=folder) as scratch,
        closing(connect(Path(scratch, "agent.db"))) as connection,
    ):
        create_schema(connection)
        create_archive(connection)
        connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        start_run(connection, _state([]), session="session-1")
        yield connection


def _state(said: list[JSONObject]) -> RunState:
    context = {"ticket": worked_context(0)["ticket"], "conversation": said}
    return RunState.begin("run-T104", "T104", "finish", context)
