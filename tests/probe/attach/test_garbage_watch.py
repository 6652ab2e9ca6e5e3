from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.probe.attach.garbage_watch import GarbageWatch
from hotloop.probe.attach.watch import Watch
from hotloop.probe.background import Background


@pytest.fixture
def collecting(tmp_path: Path) -> Any:
    hook, callbacks = sys.unraisablehook, list(gc.callbacks)
    made = GarbageWatch(Watch(tmp_path))
    made.install()
    yield made
    sys.unraisablehook = hook
    gc.callbacks[:] = callbacks


def test_an_interrupt_that_arrives_in_the_callback_is_raised_after_it(collecting: Any) -> None:
    unraisable: Any = SimpleNamespace(object=collecting._saw, exc_type=KeyboardInterrupt)

    def collect_and_go_on() -> (
        None
    ):  # in a function: 3.13.0 does not catch it in the frame of such a loop
        sys.unraisablehook(unraisable)
        until = time.monotonic() + 120
        while time.monotonic() < until:
            pass

    with pytest.raises(KeyboardInterrupt):
        collect_and_go_on()


def test_a_collection_is_no_cost_of_the_probe_whoever_allocates_next(
    collecting: GarbageWatch,
) -> None:
    watch = collecting._watch

    def collect() -> None:
        collecting._saw("start", {})
        watch.timed("data_wait", time.sleep, (0.05,), {})  # what is collected ends with it
        collecting._saw("stop", {"generation": 1})

    gc.disable()
    try:
        began = time.perf_counter()
        watch.guarded(collect)
        assert set(watch.own) == {"unattributed"}
        assert watch.own["unattributed"] <= time.perf_counter() - began - 0.05
    finally:
        gc.enable()


def test_a_collection_in_a_thread_of_the_probe_is_none_of_its_cpu_time(
    collecting: GarbageWatch,
) -> None:
    spent: list[float] = []

    def turn() -> float | None:
        if spent:
            return None
        before = time.thread_time()
        collecting._saw("start", {})
        while time.thread_time() < before + 0.05:
            pass
        collecting._saw("stop", {"generation": 1})
        spent.append(time.thread_time())
        return 0.0

    gc.disable()
    try:
        work = Background("hotloop-writer", turn)
        work.start()
        assert work._thread is not None
        work._thread.join()
        assert work.cpu_s > 0
        assert work.cpu_s - (spent[0] - 0.05) < 0.05
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [RecursionError, MemoryError])
def test_what_only_the_callback_had_no_room_for_is_not_raised_in_the_script(
    collecting: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(
        "hotloop.probe.attach.garbage_watch._thread.start_new_thread",
        lambda *given: raised.append(given),
    )
    collecting._unraisable(SimpleNamespace(object=collecting._saw, exc_type=kind))
    assert raised == []


def test_what_others_could_not_raise_is_told_as_ever(
    collecting: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    class Holder:
        def __del__(self) -> None:
            raise ValueError("theirs")

    hook = sys.unraisablehook
    seen: list[Any] = []
    collecting._before = seen.append
    assert hook == collecting._unraisable
    Holder()
    assert [each.exc_type for each in seen] == [ValueError]


def test_full_collections_are_known_by_their_place(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
import gc
model, optimizer = build()
for _ in range(30):
    train(model, optimizer, 1)
    gc.collect()
""")
    found = ended.census.collections
    line = (ended.directory.parent / "work-0" / "train.py").read_text().splitlines()
    assert found.num_full >= 15
    assert found.site == f"train.py:{line.index('    gc.collect()') + 1}"
    assert found.outside_s > 0.9 * found.full_s


def test_a_collection_inside_of_a_phase_is_none_of_the_time_outside(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
import gc
model, optimizer = build()
model[0].register_forward_hook(lambda *_: [gc.collect()] and None)
train(model, optimizer, 30)
""")
    found = ended.census.collections
    assert found.num_full >= 15
    assert found.outside_s < 0.1 * found.full_s
