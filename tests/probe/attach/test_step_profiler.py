from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from weakref import ref

import pytest
import torch

from hotloop.probe.attach.step_profiler import FIRST_STEP, StepProfiler
from hotloop.probe.attach.watch import Watch

PROFILE = torch.autograd.profiler.profile


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StepProfiler:
    """At the step where it opens, in a process with CUDA."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    opened: list[dict[str, object]] = []
    profile = SimpleNamespace(__enter__=lambda: None)
    monkeypatch.setattr(
        torch.autograd.profiler, "profile", lambda **given: opened.append(given) or profile
    )
    watch = Watch(tmp_path)
    watch.step = FIRST_STEP
    profiler = StepProfiler(watch, lambda: True, after_counted=None)
    profiler.opened = opened  # type: ignore[attr-defined]
    return profiler


def test_opens_where_no_graph_was_captured_as_a_profiler_that_sees_kernels(
    profiler: StepProfiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler.after_boundary()
    (given,) = profiler.opened  # type: ignore[attr-defined]
    assert given["use_device"] == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    supported = {torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA}
    monkeypatch.setattr(torch.autograd.profiler, "_supported_activities", lambda: supported)
    real = PROFILE(**given)
    assert real.kineto_activities == supported
    assert "FALLBACK" not in real.profiler_kind.name


def test_the_time_of_profiled_steps_is_that_of_the_device(
    profiler: StepProfiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that runs ahead leaves the device behind, before the profile and at its end."""
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("waited"))
    profiler.after_boundary()
    assert waited == ["waited"]
    kineto = SimpleNamespace(events=list)
    profiler._profiler = SimpleNamespace(
        __exit__=lambda *error: waited.append("ended"), kineto_results=kineto
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(str(time.sleep(0.03))))
    for _ in range(3):
        profiler.at_boundary()
    assert waited == ["waited", "None", "ended"]
    assert profiler.seen is not None
    assert (profiler.seen.step_s or 0) > 0.01


@pytest.mark.parametrize(
    ("after_counted", "says"),
    [
        (None, "is at work from step 41 on, and 17 were made"),
        (200, "is at work after 200 counted steps, and 5 were counted"),
    ],
)
def test_of_too_few_steps_it_says_when_it_comes_and_how_many_there_were(
    tmp_path: Path, after_counted: int | None, says: str
) -> None:
    profiler = StepProfiler(watch := Watch(tmp_path), lambda: True, after_counted=after_counted)
    watch.step, watch.counted_steps = 17, 5
    assert profiler.why_not == f"no profile: torch's profiler {says}"


@pytest.mark.parametrize(("cuda", "opens"), [("12.4", False), ("12.6", True), ("13.0", True)])
def test_stays_shut_after_a_capture_where_cupti_would_crash(
    profiler: StepProfiler, monkeypatch: pytest.MonkeyPatch, cuda: str, opens: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    captured = profiler._captures(lambda graph: graph, "captured")
    profiler.after_boundary()
    assert captured == "captured"
    assert bool(profiler.opened) is opens  # type: ignore[attr-defined]
    assert profiler.over is not opens
    if not opens:
        assert "CUDA graphs" in profiler.why_not
        assert not profiler._watch.profiling


def test_stays_shut_where_inductor_captures(
    profiler: StepProfiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SimpleNamespace(triton=SimpleNamespace(cudagraphs=True))
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)  # type: ignore[arg-type]
    profiler.after_boundary()
    assert "CUDA graphs" in profiler.why_not


def test_neither_opens_nor_closes_during_a_capture(
    profiler: StepProfiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    profiler.after_boundary()
    assert not profiler.opened  # type: ignore[attr-defined]
    assert not profiler.over
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    profiler.after_boundary()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(10):
        profiler.at_boundary()  # would wait for the device at the third
    assert not profiler.over


class Profile:
    """One that has seen nothing."""

    def __init__(self, **given: object) -> None:
        self.kineto_results = SimpleNamespace(events=list)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


@pytest.mark.parametrize(("most_cost", "num"), [(None, 3), (0.018, 1)])
def test_where_a_cost_is_kept_to_one_step_is_profiled_and_summed_after_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_cost: float | None, num: int
) -> None:
    monkeypatch.setattr(torch.autograd.profiler, "profile", Profile)
    watch = Watch(tmp_path)
    watch.step, watch.most_cost = FIRST_STEP, most_cost
    profiler = StepProfiler(watch, lambda: True, after_counted=None)
    profiler.after_boundary()
    for made in range(1, num + 1):
        assert not profiler.over
        profiler.at_boundary()
        assert profiler.over is (made == num)
    assert (profiler.seen is not None) is (most_cost is None)
    profiler.finish()
    assert profiler.seen is not None


def test_what_was_seen_is_kept_until_the_watch_ends_as_its_memory_would_make_later_steps_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ref[Profile]] = []

    def profile(**given: object) -> Profile:
        made.append(ref(kept := Profile()))
        return kept

    monkeypatch.setattr(torch.autograd.profiler, "profile", profile)
    watch = Watch(tmp_path)
    watch.step = FIRST_STEP
    profiler = StepProfiler(watch, lambda: True, after_counted=None)
    profiler.after_boundary()
    for _ in range(3):
        profiler.at_boundary()
    assert profiler.over
    assert made[0]() is not None
    profiler.finish()
    assert made[0]() is None
