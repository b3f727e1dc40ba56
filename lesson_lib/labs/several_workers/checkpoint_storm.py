"""A checkpoint storm: many runs that save at once through one batch, and one that ends in death."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from lesson_lib.labs.kit.clock import HandClock
from lesson_lib.ledger import Ledger
from lesson_lib.model import RunState, Step
from lesson_lib.processes import die
from lesson_lib.riders.batches import CheckpointBatch
from lesson_lib.sqlite import AgentConnection, connect, load_state, unfinished_runs

STEP = Step("classify_priority", {"priority": "normal"}, next_action="lookup_runbook")


def save_all_and_die(connection: AgentConnection, told: Ledger) -> None:
    """Save a checkpoint of each run; tell a witness which are acknowledged; die at the end."""
    batch = CheckpointBatch(connection, "storm", limit=4, delay=timedelta(hours=1))
    for run_id in unfinished_runs(connection):
        for outcome in batch.add(load_state(connection, run_id), STEP):
            if isinstance(outcome, RunState):  # else it was refused
                told.write(outcome.run_id)
    die("kill")


def count_commits(connection: AgentConnection, rate: int) -> int:
    """Save a checkpoint of each run, as they arrive at a rate; return the number of commits.

    Args:
        connection: An open connection. It gets a clock that is turned by hand.
        rate: How many checkpoints arrive per second.
    """
    states = [load_state(connection, run_id) for run_id in unfinished_runs(connection)]
    connection.clock = clock = HandClock()
    batch = CheckpointBatch(connection, "storm", limit=20, delay=timedelta(milliseconds=20))
    commits: list[str] = []
    connection.set_trace_callback(commits.append)
    for number, state in enumerate(states):
        arrival = HandClock.start + timedelta(seconds=number / rate)
        while batch.due is not None and batch.due <= arrival:
            clock.now = batch.due
            batch.poll()
        clock.now = arrival
        batch.add(state, STEP)
    batch.flush()
    connection.set_trace_callback(None)
    return commits.count("COMMIT")


if __name__ == "__main__":
    save_all_and_die(connect(sys.argv[1]), Ledger(Path(sys.argv[2])))
