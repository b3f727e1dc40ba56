"""Where a secret lies: in the bytes of which file, in which kept checkpoint."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from lesson_lib.checkpoints.codec import decompress
from lesson_lib.checkpoints.private_file import SUFFIXES
from lesson_lib.errors import CheckpointError
from lesson_lib.json_text import to_json
from lesson_lib.processes import run_python
from lesson_lib.sqlite import AgentConnection
from lesson_lib.sqlite.on_disk import COPY


def found_in_files(database: Path, secret: str) -> list[str]:
    """Return the names of the database's files whose bytes hold a text.

    To find it proves that it is there; not to find it proves nothing. It may be compressed, or
    lie across the border of two pages.
    """
    wanted = {secret.encode(), to_json(secret)[1:-1].encode()}
    files = [database.with_name(database.name + suffix) for suffix in SUFFIXES]
    with TemporaryDirectory() as folder:
        # A child makes the copies: see `rows_on_disk`.
        pairs = [(file, Path(folder, file.name)) for file in files if file.exists()]
        run_python(COPY, *chain.from_iterable(pairs))
        return [copy.name for _, copy in pairs if any(text in copy.read_bytes() for text in wanted)]


def found_in_checkpoints(connection: AgentConnection, secret: str) -> list[str]:
    """Return the kept checkpoints, as `run-T104 version 2`, whose decompressed body holds a text.

    One that does not decompress is passed by.
    """
    wanted = to_json(secret)[1:-1].encode()
    found = []
    for row in connection.execute("SELECT * FROM run_checkpoints ORDER BY checkpoint_id"):
        with suppress(CheckpointError):
            if wanted in decompress(row["body"], row["compression"]):
                found.append(f"{row['run_id']} version {row['version']}")
    return found
