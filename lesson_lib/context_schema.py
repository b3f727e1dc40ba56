"""What the context of a checkpoint looks like, and the step up from each older version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lesson_lib.errors import CheckpointError, InvalidStateError
from lesson_lib.json_text import JSONObject


@dataclass(frozen=True)
class ContextSchema:
    """The schema of an agent's contexts. Its version today is one more than its upcasters.

    Args:
        fields: The type of each field.
        required: The fields that a run begins with.
        nested: The fields of those that are objects themselves, all of them needed.
        upcasters: For each older version, from 1 on, what makes a context of it one of the next.
    """

    fields: Mapping[str, type]
    required: tuple[str, ...] = ()
    nested: Mapping[str, Mapping[str, type]] = field(default_factory=dict)
    upcasters: tuple[Callable[[JSONObject], JSONObject], ...] = ()

    @property
    def current(self) -> int:
        """The version of today."""
        return len(self.upcasters) + 1

    def upcast(self, context: Mapping[str, Any], schema_version: int) -> JSONObject:
        """Return a context of an older version as one of today's, one step per version.

        Args:
            context: The context as it was stored.
            schema_version: The schema it was stored under, from 1 to `current`.

        Raises:
            CheckpointError: The version is none of ours, newer ones included, or the context is not
                what its version says.
        """
        if schema_version not in range(1, self.current + 1):
            raise CheckpointError(
                f"it has the schema version {schema_version}, this package knows 1 to"
                f" {self.current}: update the package, nothing is guessed"
            )
        if not isinstance(context, Mapping):
            raise CheckpointError(f"its context is a {type(context).__name__}, not a JSON object")
        found = dict(context)
        try:
            for upcaster in self.upcasters[schema_version - 1 :]:
                found = upcaster(found)
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"its context is not one of schema version {schema_version}: {error!r}"
            ) from error
        return found

    def check(self, context: Mapping[str, Any]) -> None:
        """Do nothing for a context of today's schema: known fields, each of its type.

        Raises:
            InvalidStateError: A field is unknown, is missing, or has another type.
        """
        for name in self.required:
            if name not in context:
                raise InvalidStateError(
                    f"the context lacks {name}: a checkpoint without it cannot go on"
                )
        self._check_fields("context", context, self.fields)
        for name, wanted in self.nested.items():
            if name in context:
                self._check_fields(f"context.{name}", context[name], wanted)
                for inner in wanted:
                    if inner not in context[name]:
                        raise InvalidStateError(f"context.{name} lacks {inner}")

    def _check_fields(
        self, path: str, found: Mapping[str, Any], wanted: Mapping[str, type]
    ) -> None:
        for name, value in found.items():
            if name not in wanted:
                raise InvalidStateError(
                    f"{path}.{name} is no field of schema version {self.current}: add it to the"
                    " schema, or put it under experimental"
                )
            if type(value) is not wanted[name]:
                raise InvalidStateError(
                    f"{path}.{name} is a {type(value).__name__}, not a {wanted[name].__name__}"
                )


def experiment(
    context: Mapping[str, Any], name: str, value: Any, flags: Collection[str]
) -> JSONObject:
    """Return what an action that tries out a field adds to what it found, nothing without a flag.

    Args:
        context: The context so far.
        name: The name of the field under `experimental`, and of its flag.
        value: Its value.
        flags: The flags that are on in this process.
    """
    if name not in flags:
        return {}
    return {"experimental": context.get("experimental", {}) | {name: value}}
