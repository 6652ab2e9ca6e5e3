"""The choice of an engine out of several parts of a sample."""

from __future__ import annotations

from hotloop.data.engines.router import Routing, Tried, merged


def part(size: int, *tried: tuple[str, bool, float | None]) -> Routing:
    entries = tuple(
        Tried(name, same, speed, "" if same else "other ids") for name, same, speed in tried
    )
    return Routing("any", "", size, 3, entries)


def test_seconds_of_the_parts_add_up() -> None:
    found = merged(
        [
            part(100, ("reference", True, 10.0), ("fast", True, 100.0)),
            part(300, ("reference", True, 30.0), ("fast", True, 50.0)),
        ]
    )
    assert found.engine == "fast"
    assert [entry.bytes_per_cpu_s for entry in found.tried] == [400 / 20, 400 / 7]
    assert (found.sample_bytes, found.sample_documents) == (400, 6)


def test_engine_that_differs_in_one_part_is_not_chosen() -> None:
    found = merged(
        [
            part(100, ("reference", True, 10.0), ("fast", True, 100.0)),
            part(100, ("reference", True, 10.0), ("fast", False, 100.0)),
        ]
    )
    assert found.engine == "reference"
    assert found.why == "fast other ids"


def test_part_without_text_does_not_count() -> None:
    found = merged(
        [
            part(0, ("reference", True, 0.0), ("fast", True, 0.0)),
            part(100, ("reference", True, 10.0), ("fast", True, 20.0)),
        ]
    )
    assert found.engine == "fast"
    assert [entry.bytes_per_cpu_s for entry in found.tried] == [10.0, 20.0]


def test_nothing_to_compare_on_is_the_reference() -> None:
    found = merged([part(0, ("reference", True, 0.0), ("fast", True, 0.0))] * 2)
    assert found.engine == "reference"
    assert found.why == "there was no text to compare on"
