"""Checks of lesson 03: the key, a memory for results, the order of the steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from lesson_lib.errors import TransactionError
from lesson_lib.labs.checks import exercise, given, scratch_run
from lesson_lib.ledger import Ledger
from lesson_lib.sqlite import AgentConnection


@exercise(1, "change what the key is made of")
def exercise_1(key_for: Callable[[str, str, int], str]) -> str | None:
    """Compare keys over attempts, runs and tools."""
    key = key_for("run-T104", "lookup_runbook", 1)
    if not isinstance(key, str) or not key:
        return f"a key is non-empty text, yours is {key!r}"
    if key_for("run-T104", "lookup_runbook", 2) != key:
        return "the second attempt has another key, so the tool runs again"
    if key_for("run-T105", "lookup_runbook", 1) == key:
        return "two runs share the key: the second gets the first one's result"
    if key_for("run-T104", "draft_reply", 1) == key:
        return "two tools share the key: the second gets the first one's result"
    return None


@exercise(2, "look for a saved value, else call, save and return")
def exercise_2(once: Callable[[AgentConnection, str, Callable[[], Any]], Any]) -> str | None:
    """Call, repeat, fail, and return null, with a ledger as the witness."""
    with scratch_run() as (connection, folder):
        connection.execute("CREATE TABLE results (key TEXT NOT NULL PRIMARY KEY, value TEXT)")
        ledger = Ledger(folder / "ledger.txt")

        def tool(name: str, value: Any) -> Callable[[], Any]:
            def function() -> Any:
                if connection.in_transaction:
                    raise TransactionError("the tool was called inside a transaction")
                ledger.write(name)
                return value

            return function

        value = {"step": "Check the gateway.", "minutes": 5}
        if given(once(connection, "a", tool("a", value))) != value:
            return "the first call should return what the function returned"
        if once(connection, "a", tool("a", "another")) != value:
            return "the second call under one key should return the first result"
        if ledger.count("a") != 1:
            return f"the witness counts {ledger.count('a')} real calls under one key, wanted: 1"
        if once(connection, "b", tool("b", "other")) != "other":
            return "another key should call the function"
        try:
            once(connection, "c", lambda: 1 // 0)
            return "the function failed, but your code hid the error"
        except ZeroDivisionError:
            pass
        if once(connection, "c", tool("c", "ok")) != "ok":
            return "after a failure, the next call should try again"
        once(connection, "d", tool("d", None))
        once(connection, "d", tool("d", None))
        if ledger.count("d") != 1:
            return "a tool that returned None was called twice: is None the same as no row?"
    return None


@exercise(3, "assign a list of letters to order")
def exercise_3(order: Sequence[str]) -> str | None:
    """Let two callers walk through the steps, interleaved in every way."""
    if set(order) != set("ABCD") or order.count("A") != 1:
        return "use the letters A, B, C and D, and call the tool once"
    if len(order) > 6:
        return "six steps are more than enough"
    if order.index("C") < order.index("A"):
        return "a result is saved before the tool gave it"
    for turns in range(2 ** (2 * len(order))):
        calls = _two_callers(order, turns)
        if calls != 1:
            return f"two callers at one moment called the tool {calls} times: where do they meet?"
    return None


def _two_callers(order: Sequence[str], turns: int) -> int:
    """Return how often the tool is called when the bits of `turns` say who moves."""
    world: dict[str, Any] = {"saved": False, "holder": None, "calls": 0}
    waiting = {who: _caller(who, order, world) for who in (0, 1)}
    while waiting:
        who = turns & 1 if (turns & 1) in waiting else 1 - (turns & 1)
        turns >>= 1
        for each in (who, 1 - who):  # one that waits for the lock lets the other move
            if each in waiting:
                step = next(waiting[each], "end")
                if step == "end":
                    del waiting[each]
                    world["holder"] = None if world["holder"] == each else world["holder"]
                if step != "blocked":
                    break
    return int(world["calls"])


def _caller(who: int, order: Sequence[str], world: dict[str, Any]) -> Generator[str]:
    for letter in order:
        while letter == "D" and world["holder"] not in (None, who):
            yield "blocked"
        if letter == "D":
            world["holder"] = who
        elif letter == "B" and world["saved"]:
            return
        elif letter == "A":
            world["calls"] += 1
        elif letter == "C":
            world["saved"] = True
        yield "moved"
