"""Where state belongs, what a crash takes from a wrong place, and what compression is worth."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from lesson_lib.checkpoints.codec import PAYS_FROM, encode
from lesson_lib.errors import InvalidStateError, StorageError
from lesson_lib.labs.checkpoint_format import bit_flips, figures, goldens, measuring
from lesson_lib.labs.checkpoint_format.inventory import ANSWERS, KINDS, PLACES, place
from lesson_lib.labs.checkpoint_format.measuring import (
    SIZES,
    Cost,
    measure,
    pays_from,
    read_costs,
    state_of,
)
from lesson_lib.labs.checkpoint_format.placements import trial
from lesson_lib.sqlite import connect
from lesson_lib.tickets.checkpoint_schema import TICKET_SCHEMA


def after(folder: Path, places: dict[str, str]) -> dict[str, str]:
    fields = {kind.name: kind.field for kind in KINDS}
    rows = trial(folder, places)
    return {fields[row["kind"]]: row["after the crash"] for row in rows}


def test_the_answers_of_the_package_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    places = {field: place(*answers) for field, answers in ANSWERS.items()}
    assert places == {
        "conversation": "history",
        "plan": "checkpoint",
        "cursors": "checkpoint",
        "documents": "nowhere",
        "confidence": "checkpoint",
        "effects": "effects",
    }
    found = after(tmp_path, places)
    assert found.pop("documents") == "computed again"
    assert found.pop("effects") == "called once"
    assert set(found.values()) == {"whole"}


@pytest.mark.parametrize(
    ("everywhere", "found", "tool"),
    [
        ("checkpoint", {"whole"}, "called twice"),
        ("history", {"whole"}, "called twice"),
        ("nowhere", {"lost"}, "called twice"),
        ("effects", {"out of date"}, "called once"),
    ],
)
def test_a_wrong_place_shows(tmp_path: Path, everywhere: str, found: set[str], tool: str) -> None:
    result = after(tmp_path, dict.fromkeys(ANSWERS, everywhere))
    assert result.pop("effects") == tool
    result.pop("documents")  # they never change, and can be made again
    assert set(result.values()) == found


def test_every_answer_leads_to_a_place() -> None:
    found = {
        place(*answers)
        for answers in product(
            (True, False), ("cheap", "dear", "acts again"), ("nothing", "record", "progress")
        )
    }
    assert found == set(PLACES)


@pytest.mark.parametrize("answers", [(True, "free", "nothing"), (True, "cheap", "all")])
def test_an_answer_of_another_kind_is_refused(answers: tuple[bool, str, str]) -> None:
    with pytest.raises(InvalidStateError, match="is none of"):
        place(*answers)


@pytest.mark.parametrize("size", SIZES)
def test_a_made_up_state_has_the_size_it_was_asked_for(size: int) -> None:
    assert len(encode(state_of(size), TICKET_SCHEMA, "none").body) == size


def test_a_measurement_has_a_row_for_each_size_and_leaves_nothing(tmp_path: Path) -> None:
    costs = measure(tmp_path, at=(300, 5_000), rounds=2)
    assert [(cost.size, cost.compression) for cost in costs] == [
        *((300, "gzip"), (300, "zstd"), (5_000, "gzip"), (5_000, "zstd"))
    ]
    assert list(tmp_path.iterdir()) == []
    small, large = costs[1], costs[3]
    assert large.ratio < small.ratio < 1
    assert large.written < 0.9 < small.written <= 1
    assert all(cost.relative_time > 0 for cost in costs)


def test_the_recorded_measurement_covers_the_sizes() -> None:
    assert [cost.size for cost in read_costs()] == sorted(SIZES * 2)


def test_it_pays_from_the_last_size_that_does_not() -> None:
    def costs(*written: float) -> list[Cost]:
        return [Cost(n, "zstd", 0.5, share, 0.1) for n, share in enumerate(written, 1)]

    assert pays_from(costs(1.0, 0.8, 0.95, 0.9, 0.5)) == 4
    assert pays_from(costs(0.5, 0.5)) == 1
    assert pays_from(costs(0.5, 1.0)) == 0


def test_the_picture_says_what_it_shows_and_is_the_same_each_time() -> None:
    shown = figures.compression(read_costs())
    assert "from 300 to 900,000 bytes" in shown.alt
    assert f"A line at {PAYS_FROM:,} bytes" in shown.alt
    assert shown.svg == figures.compression(read_costs()).svg


def test_only_the_checksum_notices_each_flipped_byte(tmp_path: Path) -> None:
    database = tmp_path / "agent.db"
    with closing(connect(database)) as connection:
        goldens.lay_down(connection, goldens.read_goldens()["v4-none"])
    before = database.read_bytes()
    noticed = bit_flips.flip_each_byte(database)
    assert noticed["flips"] == noticed["checksum"] == len(goldens.read_goldens()["v4-none"].body)
    assert 0 < noticed["JSON"] < noticed["flips"]
    assert noticed["integrity_check"] == 0
    assert database.read_bytes() == before


def test_a_change_needs_one_place_and_equal_length(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abcabd")
    bit_flips.change(file, b"abc", b"xyz")
    assert file.read_bytes() == b"xyzabd"
    for old, new in ((b"q", b"r"), (b"b", b"cc"), (b"z", b"")):
        with pytest.raises(StorageError, match="places of"):
            bit_flips.change(file, old, new)


def test_the_time_is_measured_against_a_durable_save(tmp_path: Path) -> None:
    assert measuring.written(tmp_path, 300, "none", saves=3) > 3 * 4096
