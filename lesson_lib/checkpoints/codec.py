"""A checkpoint as bytes and back: schema version, compression, and a checksum over all of it."""

from __future__ import annotations

import gzip
import hashlib
import sys
import zlib
from dataclasses import dataclass, fields, replace

from lesson_lib.context_schema import ContextSchema
from lesson_lib.errors import CheckpointError, CheckpointSizeError, InvalidStateError
from lesson_lib.json_text import from_json, to_json
from lesson_lib.model import RunState

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LARGEST = 1_000_000  # bytes of a body before compression
PAYS_FROM = 1_000  # bytes under which compression is not worth its while
COMPRESSIONS = ("none", "gzip", "zstd")


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint as it is stored: `body` is JSON, `sha256` the digest, in hex, of all else."""

    run_id: str
    version: int
    schema_version: int
    compression: str
    body: bytes
    sha256: str


def encode(
    state: RunState, schema: ContextSchema, compression: str | None = None
) -> StoredCheckpoint:
    """Return a state as it is stored.

    Args:
        state: The state; its context must fit today's schema.
        schema: The schema of its agent.
        compression: One of `COMPRESSIONS`; None takes zstd where it pays.

    Raises:
        InvalidStateError: The context does not fit the schema, or there is no such compression.
        CheckpointSizeError: The body would be larger than `LARGEST`.
    """
    schema.check(state.context)
    rest = {name: getattr(state, name) for name in ("next_action", "status", "ticket_id")}
    # The context is JSON text already: it is put in as it is.
    body = f'{{"context": {state.context_json}, {to_json(rest)[1:]}'.encode()
    if len(body) > LARGEST:
        raise CheckpointSizeError(
            f"the checkpoint of {state.run_id} takes {len(body):,} bytes, {LARGEST:,} are allowed:"
            " move history out of the context, or summarise it"
        )
    if compression is None:
        compression = "zstd" if len(body) >= PAYS_FROM else "none"
    packed = compress(body, compression)
    stored = StoredCheckpoint(
        state.run_id, state.version, schema.current, compression, packed, sha256=""
    )
    return replace(stored, sha256=digest(stored))


def decode(stored: StoredCheckpoint, schema: ContextSchema) -> RunState:
    """Return the state that a stored checkpoint holds, as one of today's schema.

    Raises:
        CheckpointError: It cannot be trusted; the message says why.
    """
    for field in fields(stored):
        if type(value := getattr(stored, field.name)).__name__ != field.type:
            raise CheckpointError(f"its {field.name} is of the type {type(value).__name__}")
    if digest(stored) != stored.sha256:
        raise CheckpointError("its bytes are not those that were stored: the checksum differs")
    try:
        found = from_json(decompress(stored.body, stored.compression).decode())
        context = schema.upcast(found["context"], stored.schema_version)
        schema.check(context)
        return RunState(
            run_id=stored.run_id,
            ticket_id=found["ticket_id"],
            status=found["status"],
            next_action=found["next_action"],
            context_json=to_json(context, "context"),
            version=stored.version,
        )
    except (ValueError, KeyError, TypeError, InvalidStateError) as error:
        raise CheckpointError(f"its body is no checkpoint: {error}") from error


def digest(stored: StoredCheckpoint) -> str:
    """Return the SHA-256, in hex, of a stored checkpoint's other values."""
    names = ("run_id", "version", "schema_version", "compression")
    head = repr([getattr(stored, name) for name in names])
    return hashlib.sha256(head.encode() + b"\n" + stored.body).hexdigest()


def compress(body: bytes, compression: str) -> bytes:
    """Return the body compressed, the same bytes each time; see `encode`."""
    if compression == "gzip":
        return gzip.compress(body, mtime=0)
    if compression == "zstd":
        return zstd.compress(body)
    if compression == "none":
        return body
    raise InvalidStateError(f"compression {compression!r} is none of {', '.join(COMPRESSIONS)}")


def decompress(body: bytes, compression: str) -> bytes:
    """Return the body as it was before compression, never more than `LARGEST` bytes.

    Raises:
        CheckpointError: It would be larger, or is cut off, or is followed by other bytes, or is
            not what it says.
    """
    if compression == "none":
        plain, whole = body, True
    elif compression in ("gzip", "zstd"):
        stream = zlib.decompressobj(wbits=31) if compression == "gzip" else zstd.ZstdDecompressor()
        try:
            plain = stream.decompress(body, LARGEST + 1)
        except (zlib.error, zstd.ZstdError) as error:
            raise CheckpointError(f"its body does not decompress: {error}") from error
        whole = stream.eof and not stream.unused_data
    else:
        raise CheckpointError(f"its compression is not known: {compression!r}")
    if len(plain) > LARGEST:
        raise CheckpointError(f"its body grows past {LARGEST:,} bytes: a decompression bomb")
    if not whole:
        raise CheckpointError("its compressed body is cut off, or followed by other bytes")
    return plain
