"""What is read ahead is what would have been read, in the same order, at most `depth` of it."""

from __future__ import annotations

import threading

import pytest

from hotloop.data.loader import Prefetch


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_results_come_in_order_and_the_same_for_any_depth(depth: int) -> None:
    with Prefetch((n * n for n in range(3, 40)), depth=depth) as ahead:
        assert [next(ahead) for _ in range(37)] == [n * n for n in range(3, 40)]
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(ahead)


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_are_made_ahead(depth: int) -> None:
    made = []
    enough, more = threading.Event(), threading.Event()

    def make(number: int) -> int:
        made.append(number)
        if len(made) >= depth + 5:
            enough.set()
        if len(made) > depth + 5:
            more.set()
        return number

    with Prefetch(map(make, range(100)), depth=depth) as ahead:
        for _ in range(5):
            next(ahead)
        assert enough.wait(120)
        assert not more.wait(0.2)  # the thread waits for the next to be taken


@pytest.mark.parametrize("depth", [0, 2])
def test_error_is_raised_by_the_call_whose_turn_it_was(depth: int) -> None:
    def make(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    with Prefetch(map(make, range(9)), depth=depth) as ahead:
        assert [next(ahead) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three"):
            next(ahead)


def test_thread_ends_with_the_block() -> None:
    before = {*threading.enumerate()}  # of other tests some may end meanwhile
    with Prefetch(iter(range(100)), depth=2) as ahead:
        next(ahead)
        (thread,) = {*threading.enumerate()} - before
    thread.join(120)
    assert not thread.is_alive()
