"""Privacy: what an event may hold, what is removed before a save, and who can read the file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lesson_lib.checkpoints.codec import decompress
from lesson_lib.crash import run_python
from lesson_lib.errors import CheckpointError, InvalidStateError, StorageError
from lesson_lib.json_text import JSONValue, from_json, to_json
from lesson_lib.model import RunState
from lesson_lib.stores.sqlite import AgentConnection, connect
from lesson_lib.stores.sqlite.connection import utc_now
from lesson_lib.stores.sqlite.effects import LONGEST_NAME

# The fields that the detail of an event may have, for each type of event. What a run is about
# stands in its checkpoint: an event needs the name of a thing, never its text.
ALLOWED: dict[str, tuple[str, ...]] = {
    "run_started": (),
    "run_resumed": ("version",),
    "run_stopped": ("reason",),
    "run_abandoned": ("reason",),
    "checkpoint_saved": ("version", "from_version"),
    "checkpoint_refused": ("version", "reason"),
    "recovery_degraded": ("step",),
    "payload_not_kept": ("key", "version"),
    "tool_executed": ("key",),
    "tool_reused": ("key",),
    "tool_intended": ("key",),
    "tool_confirmed": ("key",),
    "tool_refused": ("key",),
    "command_delivered": ("key", "attempts"),
    "command_dead": ("key", "attempts"),
    "command_retry": ("key", "attempts"),
    "command_skip": ("key", "attempts"),
    "question_asked": ("question",),
    "question_answered": ("question",),
}
LONGEST_VALUE = LONGEST_NAME  # shorter than most prompts
LONGEST_DETAIL = 2_000  # bytes; JSON takes up to six for a character
PATTERNS = {
    "token": re.compile(r"\bbearer:?\s+[\w.~+/=-]{8,}", re.IGNORECASE | re.ASCII),
    "API key": re.compile(
        r"\b(?:(?:sk|pk|rk|xox[abp])[-_]|gh[oprsu]_|github_pat_|AKIA|AIza)[\w-]{12,}", re.ASCII
    ),
    # Bounded repeats: a long text without an @ must not take long.
    "e-mail address": re.compile(r"[\w.%+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"),
    # Groups of digits, among which a card number may stand.
    "card number": re.compile(r"(?<![0-9])[0-9]{3,}(?:[\s.-]{1,3}[0-9]{3,})*(?![0-9])"),
}
SUFFIXES = ("", "-wal", "-shm", "-journal")
COPY = """
import shutil, sys
for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    shutil.copyfile(source, target)
"""


def guard_events(connection: AgentConnection) -> None:
    """Let the database refuse each event that holds more than `ALLOWED` says.

    Whoever writes the event, and by whatever way: the transaction around it fails. Only names and
    lengths are looked at: what stands in an allowed field is not known to be harmless. Older
    events stay as they are.
    """
    with connection:
        for when in ("INSERT", "UPDATE"):
            connection.execute(f"DROP TRIGGER IF EXISTS events_hold_what_is_allowed_{when}")
            connection.execute(_trigger(when))


def redact(value: JSONValue) -> JSONValue:
    """Return a JSON value with each secret that `PATTERNS` knows replaced by its kind.

    Patterns miss what they do not know, such as a name, or a secret that is cut in two or
    encoded. Best is what never comes into a context; this is the net below.

    Raises:
        InvalidStateError: Two names of one object would become the same.
    """
    if isinstance(value, dict):
        clean = {redact(name): redact(item) for name, item in value.items()}
        if len(clean) < len(value):
            raise InvalidStateError("two names of an object become one when redacted: rename them")
        return clean
    if isinstance(value, list):
        return [redact(item) for item in value]
    if isinstance(value, str):
        return _redact_text(value)
    if type(value) is int and redact(str(value)) != str(value):
        return redact(str(value))  # a card number that came as a number
    return value


def redacting(save: Callable[..., RunState]) -> Callable[..., RunState]:
    """Return what saves a checkpoint as `save` does, with its context redacted before.

    Args:
        save: Takes the arguments of `save_checkpoint`, as `save_kept` does.
    """

    def save_redacted(
        connection: AgentConnection, state: RunState, *, context: Mapping[str, Any], **rest: Any
    ) -> RunState:
        whole = from_json(to_json(dict(context), "context"))
        return save(connection, state, context=redact(whole), **rest)

    return save_redacted


def private_database(path: str | Path) -> Path:
    """Return the path of a database file that only its owner can read; make it where it is missing.

    The file has its mode from its first moment on, whatever the umask says, and SQLite gives the
    files beside it the same mode. On Windows a mode does nothing: there the access list of the
    folder decides, and nothing is checked.

    Args:
        path: The file. A missing folder is made, for its owner only.

    Raises:
        StorageError: Others can read a file, or replace it; or it cannot be made.
    """
    try:
        path = Path(path).resolve()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError(f"{path} cannot be made: {error}") from error
    if not path.is_file():
        raise StorageError(f"{path} is no file: name another one")
    for file in filter(others_can_read, _files(path)):
        raise StorageError(
            f"others can read {file}, and may have done so: chmod 600 it, and change the secrets"
        )
    folder = path.parent.stat().st_mode
    if os.name != "nt" and folder & stat.S_IWOTH and not folder & stat.S_ISVTX:
        raise StorageError(f"everybody can replace files in {path.parent}: chmod 700 it")
    return path


def connect_private(
    path: str | Path, *, timeout: float = 5.0, clock: Callable[[], datetime] = utc_now
) -> AgentConnection:
    """Open a private database, as `connect` does, and overwrite with zeros what is deleted.

    Each connection that writes has to ask for that by itself. The disk, its backups, and pages
    that another connection freed before may still hold what the file no longer does.

    Raises:
        StorageError: See `private_database`; and the errors of `connect`.
    """
    connection = connect(private_database(path), timeout=timeout, clock=clock)
    connection.execute("PRAGMA secure_delete = ON").fetchall()
    return connection


def others_can_read(path: Path) -> bool:
    """Return whether the mode of a file gives rights to others than its owner; False on Windows."""
    return os.name != "nt" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO) != 0


def found_in_files(database: Path, secret: str) -> list[str]:
    """Return the names of the database's files whose bytes hold a text.

    To find it proves that it is there; not to find it proves nothing. It may be compressed, or
    lie across the border of two pages.
    """
    wanted = {secret.encode(), to_json(secret)[1:-1].encode()}
    with TemporaryDirectory() as folder:
        # A child makes the copies: see `show.rows_on_disk`.
        pairs = [(file, Path(folder, file.name)) for file in _files(database)]
        run_python(COPY, *(path for pair in pairs for path in pair))
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


def _trigger(when: str) -> str:
    """Return the trigger that refuses what `ALLOWED` does not name, with a sentence for each."""
    # SQLite's length of a text ends at its first NUL, that of a BLOB does not.
    refusals = [
        f"""SELECT RAISE(ABORT, 'no event of this type is allowed: add it to privacy.ALLOWED')
        WHERE NEW.event_type NOT IN ({_texts(ALLOWED)});
        SELECT RAISE(ABORT, 'an event holds more than names and numbers: shorten it')
        WHERE length(CAST(NEW.detail AS BLOB)) > {LONGEST_DETAIL}
        OR max(length(CAST(NEW.session AS BLOB)), length(CAST(NEW.action AS BLOB)))
            > {4 * LONGEST_VALUE} OR length(CAST(NEW.created_at_utc AS BLOB)) > 40;"""
    ]
    for event_type, fields in ALLOWED.items():
        named = " and ".join(fields) or "nothing"
        refusals.append(
            f"""SELECT RAISE(ABORT,
                'the detail of a {event_type} event may hold {named}, each short text or a number')
            WHERE NEW.event_type = '{event_type}' AND EXISTS (
                SELECT 1 FROM json_each(NEW.detail)
                WHERE coalesce(key, '') NOT IN ({_texts(fields)})
                OR type NOT IN ('text', 'integer') OR length(value) > {LONGEST_VALUE});"""
        )
    return f"""CREATE TRIGGER events_hold_what_is_allowed_{when} BEFORE {when} ON agent_events
    BEGIN {" ".join(refusals)} END"""


def _texts(names: Mapping[str, Any] | tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _redact_text(text: str) -> str:
    """Replace until nothing changes: what is left of one secret may be the start of another."""
    while True:
        clean = text
        for kind, pattern in PATTERNS.items():
            removed = _without_cards if kind == "card number" else f"[{kind} removed]"
            clean = pattern.sub(removed, clean)
        if clean == text:
            return text
        text = clean


def _without_cards(found: re.Match[str]) -> str:
    """Return groups of digits without those that together are a card number.

    Each whole number of groups is tried: a date or a check number may stand beside the card's.
    """
    parts = re.split(r"([^0-9]+)", found.group())
    kept, first = [], 0
    while first < len(parts):
        for last in range(min(first + 12, len(parts) - 1), first - 1, -2):
            if _is_card_number("".join(parts[first : last + 1 : 2])):
                kept.append("[card number removed]")
                break
        else:
            last = first
            kept.append(parts[first])
        kept += parts[last + 1 : last + 2]
        first = last + 2
    return "".join(kept)


def _is_card_number(digits: str) -> bool:
    """Return whether the last digit is the check digit of the others (ISO/IEC 7812-1, Luhn)."""
    if not 13 <= len(digits) <= 19 or digits[0] not in "23456":
        return False
    backwards = [int(digit) for digit in reversed(digits)]
    doubled = [sum(divmod(2 * digit, 10)) for digit in backwards[1::2]]
    return (sum(backwards[::2]) + sum(doubled)) % 10 == 0


def _files(database: Path) -> list[Path]:
    paths = (database.with_name(database.name + suffix) for suffix in SUFFIXES)
    return [path for path in paths if path.exists()]
