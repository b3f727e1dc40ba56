"""The inventory: six kinds of state of a worked run, and where each of them belongs."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from lesson_lib.errors import InvalidStateError
from lesson_lib.json_text import JSONObject
from lesson_lib.tickets import ticket_agent

PLACES = ("checkpoint", "history", "effects", "nowhere")
NUMBERS_PER_EMBEDDING, DOCUMENTS = 768, 12


@dataclass(frozen=True)
class Kind:
    """A kind of state: its name, how much depends on it, and its field in the context."""

    name: str
    priority: str
    field: str


KINDS = (
    Kind("conversation history", "high", "conversation"),
    Kind("execution context", "critical", "plan"),
    Kind("tool state", "medium", "cursors"),
    Kind("memory artefacts", "low", "documents"),
    Kind("confidence", "high", "confidence"),
    Kind("external side effects", "critical", "effects"),  # no field: they lie in tool_effects
)
ANSWERS = {
    "conversation": (False, "dear", "record"),
    "plan": (False, "dear", "progress"),
    "cursors": (True, "dear", "progress"),
    "documents": (True, "cheap", "nothing"),
    "confidence": (False, "dear", "progress"),
    "effects": (False, "acts again", "progress"),
}


def place(recoverable: bool, recompute: str, loss: str) -> str:
    """Return where a kind of state belongs: one of `PLACES`.

    Args:
        recoverable: Whether a new process can get it again from what is durable elsewhere.
        recompute: What that costs: "cheap", "dear", or "acts again" where it touches the world.
        loss: What is lost with it: "nothing", the "record" of what was, or "progress".

    Raises:
        InvalidStateError: A cost is none of these.
    """
    if recompute not in ("cheap", "dear", "acts again"):
        raise InvalidStateError(f"recompute {recompute!r} is none of cheap, dear, acts again")
    if loss not in ("nothing", "record", "progress"):
        raise InvalidStateError(f"loss {loss!r} is none of nothing, record, progress")
    if recompute == "acts again":
        return "effects"
    if loss == "nothing" or (recoverable and recompute == "cheap"):
        return "nowhere"
    return "history" if loss == "record" else "checkpoint"


def conversation(entries: int) -> list[JSONObject]:
    """Return the first entries of a made-up conversation about the sensor, the same each time."""
    chance = Random(104)
    return [_entry(number, chance) for number in range(entries)]


def worked_context(entries: int = 60, done: int = 2) -> JSONObject:
    """Return what the agent of run T104 knows, with so many entries said and sub-goals done."""
    goals = ("rate the ticket", "find the runbook", "draft the reply")
    return {
        "ticket": ticket_agent.begin("run-T104").context["ticket"],
        "priority": "urgent",
        "conversation": conversation(entries),
        "plan": {
            "task": "answer ticket T104",
            "sub_goals": [{"goal": g, "done": n < done} for n, g in enumerate(goals)],
            "branches": [{"asked": "is food at risk?", "taken": "urgent", "instead": "normal"}],
        },
        "cursors": {"ticket_pages": {"next": done + 1, "of": 7}, "partial_reply": "Priority: urg"},
        "documents": [_document(number) for number in range(DOCUMENTS)],
        "confidence": {"priority": 0.97, "runbook": 0.88, "checks": done},
    }


def _document(number: int) -> JSONObject:
    chance = Random(number)
    vector = [round(chance.gauss(0, 0.06), 8) for _ in range(NUMBERS_PER_EMBEDDING)]
    return {"id": f"manual-{number}", "text": _sentence(chance, 40), "embedding": vector}


def _entry(number: int, chance: Random) -> JSONObject:
    role = ("person", "agent")[number % 2]
    return {"role": role, "text": _sentence(chance, chance.randint(8, 60))}


VOCABULARY = (
    "sensor gateway heartbeat cable battery probe compressor fan door seal frost alarm reading"
    " log unit shelf pallet fish dairy vaccine power fuse relay firmware channel signal radio"
    " technician engineer shift dock store corridor panel screen value limit minute hour morning"
    " the a this that one each every no not still again before after since until near behind of"
    " in on at to for from with without and or but so is was has had shows says reads rises falls"
    " stopped reported checked replaced opened closed moved waited failed answered cold warm"
    " silent loose wet dry old new left right upper lower second third last first urgent normal"
)


def _sentence(chance: Random, words: int) -> str:
    # People use few words often and many seldom: the squared chance prefers the first ones.
    order = VOCABULARY.split()
    Random(1).shuffle(order)
    said = [
        order[int(chance.random() ** 2 * len(order))]
        if chance.random() < 0.9
        else f"{chance.gauss(-18, 4):.1f}"
        for _ in range(words)
    ]
    return " ".join(said).capitalize() + "."
