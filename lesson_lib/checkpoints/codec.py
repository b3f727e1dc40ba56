"""A checkpoint as bytes and back: schema version, compression, and a checksum over all of it."""

from __future__ import annotations

import gzip
import hashlib
import sys
import zlib
from dataclasses import dataclass, fields, replace

from lesson_lib.checkpoints import schema
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
    """One row of `run_checkpoints`: a checkpoint as it is stored.

    `body` holds the bytes of a JSON object, compressed or not; `sha256` is the digest, in hex, of
    everything else in the row.
    """

    run_id: str
    version: int
    schema_version: int
    compression: str
    body: bytes
    sha256: str


def encode(state: RunState, compression: str | None = None) -> StoredCheckpoint:
    """Return a state as it is stored.

    Args:
        state: The state; its context must fit today's schema.
        compression: One of `COMPRESSIONS`; None takes zstd where it pays.

    Raises:
        InvalidStateError: The context does not fit the schema.
        JSONValueError: A number of the context does not fit into 64 bits, or a value lies too deep.
        CheckpointSizeError: The body would be larger than `LARGEST`.
    """
    schema.check(state.context)
    text = to_json(
        {
            "ticket_id": state.ticket_id,
            "status": state.status,
            "next_action": state.next_action,
            "context": dict(state.context),
        }
    )
    body = text.encode()
    if len(body) > LARGEST:
        raise CheckpointSizeError(
            f"the checkpoint of {state.run_id} takes {len(body):,} bytes, {LARGEST:,} are allowed:"
            " move history out of the context, or summarise it"
        )
    if compression is None:
        compression = "zstd" if len(body) >= PAYS_FROM else "none"
    return _signed(
        StoredCheckpoint(
            run_id=str.__str__(state.run_id),  # an enum's member is not what SQLite gives back
            version=state.version,
            schema_version=schema.CURRENT,
            compression=compression,
            body=compress(body, compression),
            sha256="",
        )
    )


def decode(stored: StoredCheckpoint) -> RunState:
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
    return hashlib.sha256(head.encode() + b"\n" + bytes(stored.body)).hexdigest()


def compress(body: bytes, compression: str) -> bytes:
    """Return the body compressed, the same bytes each time.

    Raises:
        InvalidStateError: There is no such compression.
    """
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


def _signed(stored: StoredCheckpoint) -> StoredCheckpoint:
    return replace(stored, sha256=digest(stored))
