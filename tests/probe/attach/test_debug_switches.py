"""Settings for debugging that a script left on are in the census, with the line that turned them on."""

from __future__ import annotations

from typing import Any

import pytest

from hotloop.core.census import DebugSwitch

MODEL_LINES = 18
"""Above the script."""


@pytest.mark.parametrize(
    ("setup", "loop", "on"),
    [
        ("", "train(*build(), 60)", {}),
        (
            "torch.use_deterministic_algorithms(True)",
            "train(*build(), 60)",
            {"fill_uninitialized_memory": 1, "use_deterministic_algorithms": 1},
        ),
        (
            "torch.set_deterministic_debug_mode('warn')\n"
            "torch.utils.deterministic.fill_uninitialized_memory = False",
            "train(*build(), 60)",
            {"use_deterministic_algorithms": 1},
        ),
        (
            "torch.use_deterministic_algorithms(True); torch.use_deterministic_algorithms(False)",
            "train(*build(), 60)",
            {},
        ),
        (
            "torch.backends.cudnn.deterministic = True",
            "train(*build(), 60)",
            {"cudnn.deterministic": 1},
        ),
        (
            "import torch.profiler as p",
            "with p.profile(activities=[p.ProfilerActivity.CPU]): train(*build(), 60)",
            {"profiler": 2},
        ),
        (
            "import torch.profiler as p\nprof = p.profile(schedule=p.schedule(wait=1, warmup=1, active=1, repeat=1))",
            "prof.start()\nfor _ in range(6): train(*build(), 10); prof.step()",
            {},
        ),
    ],
)
def test_what_is_on_is_named_with_its_line(
    run: Any, setup: str, loop: str, on: dict[str, int]
) -> None:
    ended = run(f"{setup}\n{loop}\n")
    first = MODEL_LINES + 1
    assert ended.census.debug_switches == tuple(
        DebugSwitch(name, f"train.py:{first + line - 1}") for name, line in on.items()
    )
    assert not ended.notes


@pytest.mark.usefixtures("without_compiler")
def test_environment_is_named_without_a_line(run: Any) -> None:
    variables = {"CUDA_LAUNCH_BLOCKING": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    ended = run("train(*build(), 60)", env=variables)
    assert ended.census.debug_switches == tuple(map(DebugSwitch, variables))


def test_filling_of_new_memory_is_told_from_a_script_s_own(run: Any) -> None:
    script = """
model, optimizer = build()
for _ in range(60):
    torch.full((8,), 2.0)
    train(model, optimizer, 1)
"""
    plain = run(script).census
    filled = run("torch.use_deterministic_algorithms(True)" + script).census
    assert "aten::fill_" in {use.name for use in plain.operators}
    assert "uninitialized::fill_" not in {use.name for use in plain.operators}
    assert "uninitialized::fill_" in {use.name for use in filled.operators}
