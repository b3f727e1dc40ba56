"""Checks of lesson 08: what recovery does, a command outside its transaction, the waits."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from lesson_lib.errors import SimulatedCrash
from lesson_lib.labs.checks import exercise, given, scratch_run
from lesson_lib.model import Step
from lesson_lib.riders import outbox
from lesson_lib.riders.delivery import RetryPolicy
from lesson_lib.sqlite import AgentConnection, load_state, write_checkpoint

OUTAGE = timedelta(minutes=10)
COMMANDS = 100


@exercise(1, "return what to do for each thing the service can say")
def exercise_1(next_step: Callable[[str, float, float], str]) -> str | None:
    """Ask for the step after everything a service can say, about intents of any age."""
    known = ("confirm", "repeat", "wait", "ask a person")
    cases = {
        ("found", 1): ("confirm", "the payment was found, so it must not be made again"),
        ("in progress", 1): ("wait", "the first request is still at work"),
        ("no answer", 1): ("wait", "silence says nothing about the payment"),
        ("not known", 1): ("repeat", "a fresh key that is not known was never used"),
        ("not known", 22): ("repeat", "the key is still remembered"),
        ("not known", 23): ("ask a person", "the key may be forgotten by now"),
        ("not known", 500): ("ask a person", "the key may be forgotten, or never have been used"),
        ("not known", -1): ("ask a person", "the clock was set back, so the age says nothing"),
        ("not known", 0): ("repeat", "a key of this very moment is remembered"),
        ("found", 500): ("confirm", "a receipt counts at any age"),
        ("found", -1): ("confirm", "a receipt counts, whatever the clock says"),
        ("in progress", -1): ("wait", "it is at work, whatever the clock says"),
        ("no answer", -1): ("wait", "the service may know, whatever the clock says"),
        ("in progress", 500): ("wait", "it is at work, at any age"),
        ("no answer", 500): ("wait", "the service may still know, so ask it again first"),
    }
    for (said, age), (wanted, reason) in cases.items():
        step = given(next_step(said, age, 23))
        if step not in known:
            return f"{said!r} at the age of {age} hours gives {step!r}: use one of {known}"
        if step != wanted:
            return f"{said!r} at the age of {age} hours gives {step!r}, wanted {wanted!r}: {reason}"
    if next_step("not known", 23, 48) != "repeat":
        return (
            "'not known' at the age of 23 hours is repeated where keys live for 48: see key_lives"
        )
    return None


@exercise(2, "mend the function")
def exercise_2(save_both: Callable[..., object]) -> str | None:
    """Let the process die before, between and after the two writes, and look at what is left."""
    for alive in (2, 0, 1):
        with scratch_run() as (connection, _):
            outbox.create_outbox(connection)
            calls = _Calls(connection, alive)
            with suppress(SimulatedCrash):
                save_both(connection, calls.checkpoint, calls.command)
            if connection.in_transaction:  # what was not committed dies with the process
                connection.execute("ROLLBACK")
            saved = load_state(connection, "run-T104").version == 1
            put = len(outbox.commands(connection)) == 1
        if alive == 2 and not (saved and put):
            missing = "command" if saved else "checkpoint"
            return f"nobody died, and still there is no {missing} that is committed"
        if saved and not put:
            return "died between the two: the run is finished, and nobody will ever pay"
        if put and not saved:
            return "died between the two: the command is there, and the resumed run puts another"
    return None


class _Calls:
    """The two writes of the exercise; the process "dies" after `alive` of them."""

    def __init__(self, connection: AgentConnection, alive: int) -> None:
        self.connection, self.alive = connection, alive
        self.run = load_state(connection, "run-T104")

    def checkpoint(self) -> None:
        self._live()
        step = Step("pay_call_out", {}, next_action=None)
        write_checkpoint(self.connection, self.run, step, session="session-1")

    def command(self) -> None:
        self._live()
        outbox.put_command(
            self.connection,
            run_id="run-T104",
            key="run-T104:pay_call_out",
            tool_name="pay_call_out",
            request={},
        )

    def _live(self) -> None:
        if self.alive == 0:
            raise SimulatedCrash
        self.alive -= 1


@exercise(3, "change the numbers of the policy")
def exercise_3(policy: RetryPolicy) -> str | None:
    """Let many commands fail until an outage ends."""
    if not isinstance(policy, RetryPolicy):
        return f"policy must be a RetryPolicy, yours is a {type(policy).__name__}"
    if policy.max_attempts > 12:
        return f"{policy.max_attempts} attempts are too many, wanted: 12 or fewer"
    if policy.cap > timedelta(minutes=5):
        return (
            "a wait may last longer than 5 minutes: after the outage nobody wants to wait so long"
        )
    if min(policy.base, policy.cap) > timedelta(minutes=1):
        return "most outages last seconds: the first wait must not be longer than a minute"
    alive = sum(map(_outlives, [policy] * COMMANDS, range(COMMANDS)))
    if alive < 95:
        return (
            f"{COMMANDS - alive} of {COMMANDS} commands are dead letters before the service is"
            " back, wanted: 5 or fewer"
        )
    return None


def _outlives(policy: RetryPolicy, seed: int) -> bool:
    chance = random.Random(seed)
    waits = [policy.wait_after(attempt, chance) for attempt in range(1, policy.max_attempts)]
    return sum(waits, timedelta()) >= OUTAGE
