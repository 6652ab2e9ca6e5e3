from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hotloop.probe.attach.watch import Watch
from hotloop.probe.attach.window import FIRST_STEP, Window


@pytest.fixture
def window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Window:
    """At the step where it opens, in a process with CUDA."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    opened: list[dict[str, object]] = []
    profile = SimpleNamespace(__enter__=lambda: None)
    monkeypatch.setattr(
        torch.autograd.profiler, "profile", lambda **given: opened.append(given) or profile
    )
    watch = Watch(tmp_path)
    watch.step = FIRST_STEP
    window = Window(watch, lambda: True, after_counted=None)
    window.opened = opened  # type: ignore[attr-defined]
    return window


def test_opens_where_no_graph_was_captured(window: Window) -> None:
    window.after_boundary()
    assert window.opened == [{"use_device": "cuda", "record_shapes": True}]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("cuda", "opens"), [("12.4", False), ("12.6", True), ("13.0", True)])
def test_stays_shut_after_a_capture_where_cupti_would_crash(
    window: Window, monkeypatch: pytest.MonkeyPatch, cuda: str, opens: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    captured = window._captures(lambda graph: graph, "captured")
    window.after_boundary()
    assert captured == "captured"
    assert bool(window.opened) is opens  # type: ignore[attr-defined]
    assert window.over is not opens
    if not opens:
        assert "CUDA graphs" in window.why_not
        assert not window._watch.profiling


def test_stays_shut_where_inductor_captures(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SimpleNamespace(triton=SimpleNamespace(cudagraphs=True))
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)  # type: ignore[arg-type]
    window.after_boundary()
    assert "CUDA graphs" in window.why_not


def test_neither_opens_nor_closes_during_a_capture(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    window.after_boundary()
    assert not window.opened  # type: ignore[attr-defined]
    assert not window.over
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    window.after_boundary()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(10):
        window.at_boundary()  # would wait for the device at the third
    assert not window.over
