"""Kill any agent at every point of its running code, resume it, and compare.

`hooks` make the points, `points` count them, `sessions` run in processes that die, `kills` compare
with a run that nobody disturbed.
"""

from lesson_lib.sweep.kills import (
    Outcome,
    Target,
    Undisturbed,
    kill_and_resume,
    kill_everywhere,
    run_undisturbed,
    stretches,
)
from lesson_lib.sweep.sessions import run_session

__all__ = [
    "Outcome",
    "Target",
    "Undisturbed",
    "kill_and_resume",
    "kill_everywhere",
    "run_session",
    "run_undisturbed",
    "stretches",
]
