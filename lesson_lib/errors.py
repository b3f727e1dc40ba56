"""The errors that this package raises on purpose, and the crash that is no error."""


class LessonError(Exception):
    """The base of every error this package raises on purpose."""


class TicketDataError(LessonError):
    """A data file cannot be trusted. The message names file, row and column."""


class UnknownRunbookError(LessonError):
    """No runbook is known for this kind of ticket."""


class StorageError(LessonError):
    """The database file cannot be opened, read or written now."""


class ForeignFileError(StorageError):
    """The file is not an agent database. It was left as it was."""


class SchemaVersionError(StorageError):
    """The database was made by a later version of this package. It was left as it was."""


class TransactionError(LessonError):
    """A connection was used as it must not be: in or out of a transaction, or after a fork."""


class JSONValueError(LessonError, ValueError):
    """A value would not come back from JSON as it was. The message names its path."""


class InvalidStateError(LessonError):
    """A run state breaks a rule of the model: nothing was written."""


class UnknownRunError(LessonError):
    """The store holds no run of this id."""


class RunExistsError(LessonError):
    """A run of this id was started before."""


class RunCompletedError(LessonError):
    """The run is finished: there is no next action."""


class UnknownActionError(LessonError):
    """A checkpoint or a step names an action that this agent does not have."""


class StaleVersionError(LessonError):
    """Somebody else saved a later checkpoint: this writer's copy is out of date."""


class CorruptStateError(LessonError):
    """Stored rows contradict each other or cannot be decoded."""


class IdempotencyConflictError(LessonError):
    """An idempotency key was used again by another run, with another tool or another input."""


class KeyBusyError(LessonError):
    """Another caller has been running the tool of this key for longer than we would wait."""


class ToolResultError(LessonError):
    """The tool ran, but its result cannot be saved as JSON."""


class CheckpointError(LessonError):
    """A stored checkpoint cannot be trusted. The message says why."""


class CheckpointSizeError(LessonError):
    """A checkpoint would be larger than allowed: nothing was written."""


class CheckpointConflictError(LessonError):
    """Two checkpoints of one run claim the same version with different contents."""


class NotKeptError(LessonError):
    """What was asked for about a run's past is not stored in this way of keeping runs."""


class ReplayError(CorruptStateError):
    """The events of a run do not lead to a state, or a replay looks at more than the events."""


class LeaseLostError(LessonError):
    """Another worker has taken over the run: this one's claim no longer counts."""


class RemoteError(LessonError):
    """A service gave no answer that can be used; what it did is not known."""


class RefusedError(LessonError):
    """A service refused a request for good: the same request will never succeed."""


class OutcomeUnknownError(LessonError):
    """No machine can tell whether a call happened: a person must look before it is repeated."""


class ChildError(LessonError):
    """A child process ended otherwise than it was asked to."""


class SimulatedCrash(BaseException):
    """The process "dies" here.

    Not an `Exception`: code that catches errors must not be able to survive a crash.
    """
