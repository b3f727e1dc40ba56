"""The history: every entry of a run's conversation, append-only; the checkpoint keeps a window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lesson_lib.errors import InvalidStateError, TransactionError
from lesson_lib.json_text import JSONObject, from_json, to_json
from lesson_lib.model import require_text
from lesson_lib.sqlite import AgentConnection
from lesson_lib.store import Rider, Saving

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

type Entry = JSONObject  # {"role": …, "text": …}; a summary has the number `entries` too
type Summarise = Callable[[str, Sequence[Entry]], str]


def headlines(so_far: str, leaving: Sequence[Entry]) -> str:
    """Return a summary without a model: the first words of each entry, the last ones of all."""
    for entry in leaving:
        words = str(entry["text"]).split()
        so_far += f"{entry['role']}: {' '.join(words[:HEADLINE_WORDS])}. "
    return so_far[-SUMMARY_CHARACTERS:]


@dataclass(frozen=True)
class Window(Rider):
    """Keeps the last entries of the conversation in the checkpoint, and all in the history.

    The conversation grows by the `appended` of a step. What another kind of save added is not in
    the history: let each save of a run have this rider. Put `Redact` before it, or the summary is
    made of what should not be kept. For the arguments see `slide`.
    """

    window: int = WINDOW
    summarise: Summarise = headlines

    def prepare(self, saving: Saving) -> Saving:
        """Let the window slide over the new entries.

        Raises:
            InvalidStateError: The step replaces the conversation; or see `slide`.
        """
        context = saving.after.context
        if saving.step is None or "conversation" not in context:
            return saving
        if "conversation" in saving.step.found:
            raise InvalidStateError(
                f"{saving.step.action} replaces the conversation of {saving.after.run_id}: only"
                " add to it, as `appended`"
            )
        kept = slide(context["conversation"], self.window, self.summarise)
        context_json = to_json(context | {"conversation": kept}, "context")
        return replace(saving, after=replace(saving.after, context_json=context_json))

    def write(self, connection: AgentConnection, saving: Saving) -> None:
        """Append the new entries to the history."""
        new = saving.after.context if saving.step is None else saving.step.appended
        append(connection, saving.after.run_id, new.get("conversation", []))


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


def slide(
    conversation: Sequence[Entry], window: int = WINDOW, summarise: Summarise = headlines
) -> list[Entry]:
    """Return a conversation as one summary and the last entries as they are.

    Args:
        conversation: The entries; the first may be the summary of an earlier call.
        window: How many entries stay, at least one.
        summarise: What makes the summary so far and the entries that leave into one text: the
            place for a model.

    Raises:
        InvalidStateError: The window is smaller than one entry, or an entry is none.
    """
    if window < 1:
        raise InvalidStateError(f"a window of {window} entries holds nothing: keep at least one")
    for entry in conversation:
        if not isinstance(entry, dict) or not {"role", "text"} <= entry.keys():
            raise InvalidStateError("each entry of a conversation needs `role` and `text`")
    summary: Entry = {"text": "", "entries": 0}
    said = list(conversation)
    if said and said[0]["role"] == "summary":
        summary = said.pop(0)
    is_ours = type(summary.get("entries")) is int
    if not is_ours or any(entry["role"] == "summary" for entry in said):
        raise InvalidStateError(
            "`summary` is the role of the first entry alone, which `slide` made"
        )
    leaving, staying = said[:-window], said[-window:]
    if not leaving:
        return list(conversation)
    text, entries = summarise(summary["text"], leaving), summary["entries"] + len(leaving)
    return [{"role": "summary", "text": text, "entries": entries}, *staying]
