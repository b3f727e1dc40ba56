"""The history: every entry of a run's conversation, append-only; the checkpoint keeps a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lesson_lib.checkpoints import schema
from lesson_lib.checkpoints.archive import following, write_kept
from lesson_lib.checkpoints.codec import encode
from lesson_lib.errors import CheckpointSizeError, InvalidStateError, TransactionError
from lesson_lib.json_text import JSONObject, JSONValue, from_json, to_json
from lesson_lib.model import RunState, require_text
from lesson_lib.stores.sqlite import AgentConnection

WINDOW = 20  # entries of the conversation that stay in the checkpoint as they are
HEADLINE_WORDS, SUMMARY_CHARACTERS = 6, 2_000
# Without a hidden row number, by which REPLACE INTO would change an entry unseen.
TABLE = """CREATE TABLE IF NOT EXISTS run_history (
    run_id     TEXT NOT NULL REFERENCES agent_runs (run_id) ON DELETE CASCADE,
    position   INTEGER NOT NULL CHECK (position > 0),
    entry_json TEXT NOT NULL CHECK (json_valid(entry_json)),
    PRIMARY KEY (run_id, position)
) STRICT, WITHOUT ROWID"""
TRIGGERS = (
    """CREATE TRIGGER IF NOT EXISTS history_is_never_changed BEFORE UPDATE ON run_history
    BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END""",
    # The rows of a deleted run go with it: by then it is no longer in agent_runs.
    """CREATE TRIGGER IF NOT EXISTS history_is_never_cut BEFORE DELETE ON run_history
    WHEN EXISTS (SELECT 1 FROM agent_runs WHERE run_id = OLD.run_id)
    BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END""",
    # INSERT OR REPLACE deletes without a DELETE trigger, so a place is never given twice.
    """CREATE TRIGGER IF NOT EXISTS history_only_grows BEFORE INSERT ON run_history
    WHEN NEW.position <> 1 + (SELECT coalesce(max(position), 0) FROM run_history
                              WHERE run_id = NEW.run_id)
    BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END""",
)

type Entry = JSONObject  # {"role": …, "text": …}
type Clean = Callable[[JSONValue], JSONValue]
type Summarise = Callable[[str, Sequence[Entry]], str]


def create_history(connection: AgentConnection) -> None:
    """Create the table of the history, with the triggers that keep it append-only."""
    with connection:
        for statement in (TABLE, *TRIGGERS):
            connection.execute(statement)


def append(connection: AgentConnection, run_id: str, entries: Sequence[Entry]) -> None:
    """Append entries to the history of a run, inside the caller's transaction.

    Raises:
        TransactionError: No transaction is open.
    """
    if not connection.in_transaction:
        raise TransactionError("append writes inside the caller's `with connection:` block")
    connection.executemany(
        """INSERT INTO run_history SELECT :run_id, 1 + coalesce(max(position), 0), :entry
        FROM run_history WHERE run_id = :run_id""",
        [{"run_id": run_id, "entry": to_json(entry, "entry")} for entry in entries],
    )


def read_history(connection: AgentConnection, run_id: str) -> list[Entry]:
    """Return every entry of a run's conversation, from the first on."""
    rows = connection.execute(
        "SELECT entry_json FROM run_history WHERE run_id = ? ORDER BY position",
        (require_text("run_id", run_id),),
    ).fetchall()
    return [from_json(row["entry_json"]) for row in rows]


def headlines(so_far: str, leaving: Sequence[Entry]) -> str:
    """Return a summary without a model: the first words of each entry, the last ones of all."""
    for entry in leaving:
        words = str(entry["text"]).split()
        so_far += f"{entry['role']}: {' '.join(words[:HEADLINE_WORDS])}. "
    return so_far[-SUMMARY_CHARACTERS:]


def slide(
    conversation: Sequence[Entry], window: int = WINDOW, summarise: Summarise = headlines
) -> list[Entry]:
    """Return a conversation as one summary and the last `window` entries as they are.

    Args:
        conversation: The entries; the first may be the summary of an earlier call.
        window: How many entries stay.
        summarise: What makes the summary so far and the entries that leave into one text: the
            place for a model.

    Raises:
        InvalidStateError: The window is smaller than one entry, or an entry is none.
    """
    if window < 1:
        raise InvalidStateError(f"a window of {window} entries holds nothing: keep at least one")
    so_far, said = _parts(conversation)
    leaving, staying = said[:-window], said[-window:]
    if not leaving:
        return list(conversation)
    text = summarise(str(so_far["text"]), leaving)
    return [
        {"role": "summary", "text": text, "entries": so_far["entries"] + len(leaving)},
        *staying,
    ]


def save_windowed(
    connection: AgentConnection,
    state: RunState,
    *,
    session: str,
    action: str,
    next_action: str | None,
    context: Mapping[str, JSONValue],
    window: int = WINDOW,
    summarise: Summarise = headlines,
    clean: Clean = lambda value: value,
) -> RunState:
    """Save as `save_kept` does, with the new entries of the conversation in the history.

    Row, event, archive and history are one transaction. What the history lacks it gets too, as
    far as `state` has it: entries of a save that knew no history, all of them or the last ones.
    After a recovery it may have more than the conversation: what is said again stands in it
    again, and what another save adds then is not missed. The checkpoint keeps the last `window`
    entries, and half as many, down to one, while it would be too large.

    Args:
        connection: An open connection, outside of a transaction.
        state: The checkpoint this one follows.
        session: Which process life writes this.
        action: The action that was completed.
        next_action: The action to do next; None completes the run.
        context: The whole new context; its `conversation` is that of `state`, and what was said
            since.
        window: How many entries stay, at least one.
        summarise: See `slide`.
        clean: What every value goes through before it is stored, as `privacy.redact`: context,
            summary and history. Not `redacting(save_windowed)`: it knows of no summary.

    Raises:
        InvalidStateError: The context does not fit the schema, or its conversation does not begin
            with that of `state`, or an entry is none, or the history lacks entries that the
            conversation has only in its summary.
        CheckpointSizeError: It is too large with one entry still. Nothing changed.
        Exception: Those of `save_kept`. Nothing changed.
    """
    context = clean(from_json(to_json(dict(context), "context")))
    schema.check(context)
    before = clean(state.context.get("conversation", []))
    said = context.get("conversation", [])
    if said[: len(before)] != before:
        raise InvalidStateError(
            f"the conversation of {state.run_id} does not begin with what is stored: load the"
            " state again, and only add to it"
        )
    _parts([{"role": "summary", "text": "", "entries": 0}, *said[len(before) :]])
    while True:
        kept = dict(context)
        if "conversation" in context:
            kept["conversation"] = clean(slide(said, window, summarise))
        try:
            encode(following(state, next_action, kept))
            break
        except CheckpointSizeError:
            if window <= 1:
                raise
            window //= 2
    with connection:
        new = write_kept(
            connection,
            state,
            session=session,
            action=action,
            next_action=next_action,
            context=kept,
        )
        missing = _missing(connection, state.run_id, before)
        append(connection, state.run_id, [*missing, *said[len(before) :]])
    return new


def _parts(conversation: Sequence[Entry]) -> tuple[Entry, list[Entry]]:
    """Return the summary that a conversation begins with, an empty one for none, and the rest.

    Raises:
        InvalidStateError: An entry is none.
    """
    begins = list(conversation[:1])
    has_summary = bool(begins) and _is_entry(begins[0]) and begins[0]["role"] == "summary"
    said = list(conversation[has_summary:])
    for entry in said:
        if not _is_entry(entry) or entry["role"] == "summary":
            raise InvalidStateError(
                "each entry of a conversation needs `role` and `text`, both text, and `summary` is"
                " the role of the first entry alone"
            )
    if not has_summary:
        return {"text": "", "entries": 0}, said
    if type(begins[0].get("entries")) is not int:
        raise InvalidStateError("the summary of a conversation lacks its number of entries")
    return begins[0], said


def _is_entry(entry: JSONValue) -> bool:
    texts = [entry.get(name) for name in ("role", "text")] if isinstance(entry, dict) else []
    return bool(texts) and all(isinstance(text, str) for text in texts)


def _missing(
    connection: AgentConnection, run_id: str, conversation: Sequence[Entry]
) -> Sequence[Entry]:
    """Return what the history lacks of a stored conversation."""
    find = """SELECT entry_json, (SELECT max(position) FROM run_history WHERE run_id = :run_id)
        FROM run_history WHERE run_id = :run_id AND position = 1"""
    row = connection.execute(find, {"run_id": run_id}).fetchone()
    if row is None:
        return conversation
    summary, said = _parts(conversation)
    first, written = from_json(row[0]), row[1]
    if _is_entry(first) and first["role"] == "summary":  # of a history that began late
        written += first["entries"] - 1
    lacks = summary["entries"] + len(said) - written
    if lacks > len(said):
        raise InvalidStateError(
            f"the history of {run_id} lacks {lacks} entries, its conversation has only the last"
            f" {len(said)}: another save has summarised the others"
        )
    return said[-lacks:] if lacks > 0 else []
