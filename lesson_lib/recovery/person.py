"""A run that no rule can recover: a question that waits for a person."""

from __future__ import annotations

from lesson_lib.recovery.story import Story
from lesson_lib.stores.sqlite import AgentConnection, questions

CHOICES = ("a backup is restored", "the run is given up")


def without_content(reason: str) -> str:
    """Return what may be recorded of a reason: the kind of the fault, and no value of the state.

    Values stand behind the first colon; see `trust.Refused`.
    """
    return reason.partition(":")[0][:255]


def ask_person(connection: AgentConnection, story: Story, session: str, reason: str) -> None:
    """Ask what to do with a run, inside the caller's transaction; not while a question waits."""
    for statement in questions.STATEMENTS:
        connection.execute(statement)
    asks = f"{story.run_id}:recover:"
    # After another damage the story is another: an earlier answer was not about this one. Question
    # and answer are events too.
    told = [event.sequence for event in story.events if event.action != "ask_person"]
    question_id = f"{asks}{max(told, default=0)}"
    asked = connection.execute(
        """SELECT 1 FROM run_questions WHERE question_id = :id
        OR (answer IS NULL AND substr(question_id, 1, length(:asks)) = :asks)""",
        {"id": question_id, "asks": asks},
    ).fetchone()
    if asked is None:
        questions.ask(
            connection,
            run_id=story.run_id,
            session=session,
            question_id=question_id,
            question=f"{story.run_id} cannot go on by itself: {without_content(reason)}."
            " Restore a backup?",
            choices=CHOICES,
        )
