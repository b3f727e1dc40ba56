"""A checkpoint comes back from its bytes as it was, or is refused; it never comes back changed."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from checkpoint_parts import TICKET, contexts, fields, fitting, tickets, values
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lesson_lib.checkpoints import codec
from lesson_lib.checkpoints.codec import COMPRESSIONS, LARGEST, StoredCheckpoint
from lesson_lib.errors import CheckpointError, CheckpointSizeError, InvalidStateError
from lesson_lib.json_text import to_json
from lesson_lib.labs.checkpoint_format.measuring import (
    bomb,
    open_measured,
    pays_from,
    read_costs,
)
from lesson_lib.model import RunState
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA

QUICK = settings(derandomize=True, deadline=None, max_examples=50, database=None)
LONG = settings(QUICK, max_examples=2_000)


def encode(state: RunState, compression: str | None = None) -> StoredCheckpoint:
    return codec.encode(state, TICKET_SCHEMA, compression)


def decode(stored: StoredCheckpoint) -> RunState:
    return codec.decode(stored, TICKET_SCHEMA)


def state_of(context: Any, version: int = 3, next_action: str | None = "finish") -> RunState:
    status = "completed" if next_action is None else "running"
    return RunState("run-T104", "T104", status, next_action, to_json(context), version)


def stored_body(
    body: bytes, compression: str = "none", schema_version: int = 4
) -> StoredCheckpoint:
    """Return a row with a right checksum over whatever body."""
    row = StoredCheckpoint("run-T104", 3, schema_version, compression, body, "")
    return replace(row, sha256=codec.digest(row))


states = st.builds(
    state_of, contexts, st.integers(0, 2**40), st.sampled_from([None, "finish", "ü"])
)


def comes_back_or_is_refused(state: RunState, compression: str) -> None:
    try:
        stored = encode(state, compression)
    except InvalidStateError:
        with pytest.raises(InvalidStateError):
            TICKET_SCHEMA.check(state.context)
        return
    assert decode(stored) == state
    assert encode(state, compression) == stored


@QUICK
@given(states, st.sampled_from(COMPRESSIONS))
def test_a_state_comes_back_as_it_was_or_is_refused(state: RunState, compression: str) -> None:
    comes_back_or_is_refused(state, compression)


@pytest.mark.prove
@LONG
@given(states, st.sampled_from(COMPRESSIONS))
def test_many_states_come_back_as_they_were(state: RunState, compression: str) -> None:
    comes_back_or_is_refused(state, compression)


@QUICK
@given(fitting, st.sampled_from([None, *COMPRESSIONS]))
def test_every_context_that_fits_is_taken(context: dict[str, Any], compression: str | None) -> None:
    state = state_of(context)
    assert decode(encode(state, compression)) == state


@QUICK
@given(fitting, st.sampled_from([None, "finish", 'a "name"']))
def test_the_body_is_json_text_of_one_form(context: dict[str, Any], action: str | None) -> None:
    state = state_of(context, next_action=action)
    whole = {"context": context, "status": state.status, "ticket_id": "T104"}
    assert encode(state, "none").body == to_json(whole | {"next_action": action}).encode()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("others", [(16,), pytest.param(range(1, 256), marks=pytest.mark.prove)])
def test_every_changed_byte_of_a_row_is_noticed(compression: str, others: Iterable[int]) -> None:
    stored = encode(state_of({"ticket": TICKET, "conversation": ["x" * 40]}), compression)
    for place in range(len(stored.body)):
        for other in others:
            body = bytearray(stored.body)
            body[place] ^= other
            with pytest.raises(CheckpointError, match="checksum"):
                decode(replace(stored, body=bytes(body)))
    for name in ("run_id", "compression", "sha256"):
        text = getattr(stored, name)
        for place in range(len(text)):
            changed = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
            with pytest.raises(CheckpointError, match="checksum"):
                decode(replace(stored, **{name: changed}))
    for bit in range(63):
        version, schema_version = 3 ^ 1 << bit, 4 ^ 1 << bit
        for row in (
            replace(stored, version=version),
            replace(stored, schema_version=schema_version),
        ):
            with pytest.raises(CheckpointError, match="checksum"):
                decode(row)


@QUICK
@given(st.data(), st.sampled_from(COMPRESSIONS))
def test_a_body_that_is_cut_grown_or_turned_round_is_noticed(
    data: st.DataObject, compression: str
) -> None:
    stored = encode(state_of({"ticket": TICKET}), compression)
    place = data.draw(st.integers(0, len(stored.body) - 1))
    before, after = stored.body[:place], stored.body[place:]
    for body in (before, after + before, before + b"\0" + after, before + after[1:], after * 2):
        if body != stored.body:
            with pytest.raises(CheckpointError):
                decode(replace(stored, body=body))


@pytest.mark.parametrize(
    "changes",
    [
        {"body": "text"},
        {"body": 10**15},
        {"body": None},
        {"sha256": b"x"},
        {"version": 3.0},
        {"version": True},
        {"run_id": b"run-T104"},
        {"schema_version": "4"},
        {"compression": None},
    ],
)
def test_a_value_of_another_type_is_refused_before_it_is_used(changes: dict[str, Any]) -> None:
    stored = replace(encode(state_of({"ticket": TICKET})), **changes)
    (name,) = changes
    with pytest.raises(CheckpointError, match=f"its {name} is of the type"):
        decode(stored)


def test_two_rows_cannot_share_a_checksum_by_the_place_of_a_border() -> None:
    row = StoredCheckpoint("run", 1, 23, "none", b"x", "")
    assert codec.digest(row) != codec.digest(replace(row, version=12, schema_version=3))
    assert codec.digest(row) != codec.digest(replace(row, run_id="run', 1"))


@QUICK
@given(st.binary(max_size=60), st.sampled_from([*COMPRESSIONS, "", "lzma"]))
@example(b"", "gzip")
@example(b"", "zstd")
@example(gzip.compress(b"a") + gzip.compress(b"b"), "gzip")
def test_any_bytes_decompress_to_something_small_or_are_refused(
    body: bytes, compression: str
) -> None:
    try:
        plain = codec.decompress(body, compression)
    except CheckpointError:
        return
    assert len(plain) <= LARGEST


@QUICK
@given(st.data(), st.sampled_from(["gzip", "zstd"]))
def test_damaged_compressed_bytes_do_not_surprise(data: st.DataObject, compression: str) -> None:
    packed = bytearray(codec.compress(b"a conversation " * 9, compression))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CheckpointError):
        assert len(codec.decompress(bytes(packed), compression)) <= LARGEST


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_largest_body_is_taken_and_one_byte_more_is_not(compression: str) -> None:
    body = bytes(LARGEST)
    assert codec.decompress(codec.compress(body, compression), compression) == body
    with pytest.raises(CheckpointError, match="grows past 1,000,000"):
        codec.decompress(codec.compress(body + b"\0", compression), compression)


def test_a_bomb_takes_no_more_memory_than_a_checkpoint() -> None:
    refusal, peak = open_measured(bomb(megabytes=200))
    assert "decompression bomb" in refusal
    assert peak < 5 * LARGEST
    assert open_measured(gzip.compress(b"{}"))[0] == ""


def test_a_zstd_bomb_is_refused_too() -> None:
    with pytest.raises(CheckpointError, match="decompression bomb"):
        codec.decompress(codec.compress(bytes(50 * LARGEST), "zstd"), "zstd")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[]", "no checkpoint"),
        (b"null", "no checkpoint"),
        (b"{}", "context"),
        (b'{"context": [["ticket", {}]]}', "its context is a list"),
        (b'{"context": {"ticket": 1e400}}', "JSON"),
        (b'{"context": NaN}', "NaN"),
        (b"\xff", "no checkpoint"),
        (b"[" * 100_000, "nested"),
        (b"9" * 5_000, "no checkpoint"),
        (b'{"context": {"ticket": {}}}', "lacks area"),
        (b'{"context": {"ticket": 7}}', "ticket"),
    ],
)
def test_a_signed_body_that_is_no_checkpoint_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        decode(stored_body(body))


def test_a_number_that_no_column_holds_is_refused() -> None:
    good = encode(state_of({"ticket": TICKET, "plan": {"n": 2}}), "none").body
    with pytest.raises(CheckpointError, match="64 bits"):
        decode(stored_body(good.replace(b'"n": 2', b'"n": %d' % 2**70)))


@QUICK
@given(st.dictionaries(fields, values | tickets, max_size=5), st.integers(-1, 6))
def test_any_signed_body_gives_a_state_that_fits_or_is_refused(
    context: dict[str, Any], schema_version: int
) -> None:
    body = to_json({"context": context, "ticket_id": "T", "status": "running"})
    body = body[:-1] + ', "next_action": "finish"}'
    try:
        state = decode(stored_body(body.encode(), schema_version=schema_version))
    except CheckpointError:
        return
    TICKET_SCHEMA.check(state.context)
    assert encode(state)


def test_what_is_too_large_is_refused_and_named() -> None:
    with pytest.raises(CheckpointSizeError, match="of run-T104 takes 1,000,"):
        encode(state_of({"ticket": TICKET, "draft": "x" * LARGEST}))


def test_small_bodies_stay_as_they_are_and_others_take_zstd() -> None:
    plain = len(encode(state_of({"ticket": TICKET, "draft": ""}), "none").body)
    just_under = "x" * (codec.PAYS_FROM - 1 - plain)
    for text, compression in ((just_under, "none"), (just_under + "x", "zstd")):
        state = state_of({"ticket": TICKET, "draft": text})
        assert encode(state).compression == compression


def test_the_size_from_which_we_compress_is_the_measured_one() -> None:
    assert pays_from(read_costs()) == codec.PAYS_FROM


def test_an_unknown_compression_is_refused_both_ways() -> None:
    with pytest.raises(InvalidStateError, match="none of none, gzip, zstd"):
        encode(state_of({"ticket": TICKET}), "lzma")
    with pytest.raises(CheckpointError, match="is not known: 'lzma'"):
        decode(stored_body(zlib.compress(b"{}"), "lzma"))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_compressed_body_ends_where_it_says(compression: str) -> None:
    packed = encode(state_of({"ticket": TICKET}), compression).body
    assert decode(stored_body(packed, compression)).version == 3
    for body in (packed[:-1], packed[:-9], packed + b"\0", packed * 2):
        with pytest.raises(CheckpointError, match=r"cut off|other bytes"):
            decode(stored_body(body, compression))
