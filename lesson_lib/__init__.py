"""The companion package of the lessons: an agent that keeps its state and goes on after it dies.

The face of it, and an order to read it in:

1. `errors`, `json_text`, `model`: what is known of a run, and what is refused.
2. `store`: what every way to keep a run can be asked. `agent`, `context_schema`: the agent, which
   asks it, and what its contexts look like.
3. `tickets`: the example agent. `ledger`: the witness.
4. `clock`, `processes`, `sqlite`: the three records in one file. That is lessons 01 to 05.
5. `sweep`: kill any agent at every step. `riders`, `workers`: claims, intents, outbox, questions.
6. `checkpoints`, `recovery`, `patterns`: bytes that can be trusted, ways back, other ways to keep.

`labs` holds what one lesson needs and nobody takes along. Importing the package loads no folder.
"""

from lesson_lib.agent import Action, Agent
from lesson_lib.model import RunState, Step
from lesson_lib.store import Rider, StateStore

__all__ = ["Action", "Agent", "Rider", "RunState", "StateStore", "Step"]
