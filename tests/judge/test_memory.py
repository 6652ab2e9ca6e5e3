"""Where memory went adds up; a kill is called one for memory only where the kernel's counts say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.core.causal_config import CausalConfig
from hotloop.core.config import RunConfig
from hotloop.core.finetune_config import FinetuneConfig
from hotloop.core.memory_use import MemoryNote, memory_refusal
from hotloop.core.module_config import ModuleConfig
from hotloop.core.settings import Settings
from hotloop.core.telemetry import TelemetrySample
from hotloop.judge.memory import (
    killed_for_memory,
    out_of_memory,
    profile_of,
    used_fraction,
    ways_of_config,
    ways_of_script,
)

MB = 10**6
NOTE = MemoryNote(
    pid=7,
    at=1.0,
    step=30,
    phase="backward",
    peak_bytes=900 * MB,
    used_bytes=950 * MB,
    owners={"weights": 100 * MB, "gradients": 100 * MB, "optimizer": 200 * MB, "process": 300 * MB},
    phases={"backward": 900 * MB, "forward": 700 * MB},
    limit_bytes=1000 * MB,
    limit_from="the control group /sys/fs/cgroup/x",
)
COUNTS = {"boot": 5, "machine": 3, "group_id": 9, "group": 0}


@pytest.mark.parametrize(
    ("now", "fraction", "expected"),
    [
        ({**COUNTS, "machine": 4, "group": 1}, None, "yes"),
        ({**COUNTS, "machine": 4}, 0.99, "no"),  # the kernel killed somebody else
        ({"boot": 5, "machine": 4}, None, "probably"),  # the group is gone
        ({"boot": 5, "machine": 3}, 0.99, "no"),
        ({**COUNTS, "group_id": 10, "machine": 4}, None, "probably"),  # another group of that name
        ({"boot": 6, "machine": 9}, 0.5, None),  # the machine was started again since
        ({"boot": 6, "machine": 9}, 0.9, "probably"),
        ({}, 0.9, "probably"),
        ({}, None, None),
    ],
)
def test_a_kill_is_for_memory_where_the_counts_of_the_same_group_and_boot_grew(
    now: dict[str, int], fraction: float | None, expected: str | None
) -> None:
    assert killed_for_memory(COUNTS, now, fraction) == expected


def test_parts_add_up_to_the_peak_with_what_nobody_holds() -> None:
    found = profile_of(replace(NOTE, workers_bytes=50 * MB))
    assert found is not None
    assert found.parts["activations and the rest"] == 200 * MB
    assert sum(found.parts.values()) == found.peak_bytes == 950 * MB


def test_a_process_whose_pages_were_taken_back_is_no_part_below_zero() -> None:
    found = profile_of(replace(NOTE, peak_bytes=500 * MB))
    assert found is not None
    assert found.parts["process"] == 100 * MB
    assert sum(found.parts.values()) == 500 * MB


def test_on_a_device_the_process_is_no_part_of_its_memory() -> None:
    found = profile_of(replace(NOTE, device="cuda:0"))
    assert found is not None
    assert "process" not in found.parts
    assert sum(found.parts.values()) == 900 * MB


def test_an_end_is_for_memory_only_where_it_was_said_or_counted() -> None:
    assert out_of_memory(NOTE, killed=None) is None
    assert out_of_memory(NOTE, killed="no") is None
    killed = out_of_memory(NOTE, killed="yes")
    said = out_of_memory(replace(NOTE, failed="MemoryError", line="a.py:3"), killed="yes")
    assert killed is not None
    assert said is not None
    assert (killed.certainty, killed.where) == ("killed", "backward of step 30")
    assert (said.certainty, said.where) == ("said", "backward of step 30, a.py:3")


def test_the_last_seconds_of_telemetry_say_how_full_the_group_was() -> None:
    samples = [TelemetrySample(sampled_at=at, group_bytes=at * 100 * MB) for at in range(1, 11)]
    assert used_fraction(replace(NOTE, used_bytes=None), samples) == 1.0
    other = replace(NOTE, used_bytes=None, limit_from="the memory of this machine")
    assert used_fraction(other, samples) is None


FLAT = {
    "train.microbatch": 6,
    "train.grad_accum_steps": 2,
    "train.loss": "whole",
    "train.host_memory": "keep",
    "train.precision": "bf16",
    "train.compile": False,
    "train.activation_checkpointing": "none",
    "checkpoint.background": False,
}


def test_ways_of_a_config_keep_the_global_batch_and_leave_out_what_is_set() -> None:
    ways = ways_of_config(FLAT, NOTE)
    assert ways[0].startswith("train.microbatch=3 train.grad_accum_steps=4:")
    named = " ".join(ways)
    assert "train.loss=chunked" in named
    assert "train.host_memory=default" in named
    assert "train.precision" not in named
    assert "checkpoint.background" not in named
    assert "train.host_memory" not in " ".join(ways_of_config(FLAT, replace(NOTE, device="cuda:0")))
    again = [each for each in ways if "activation_checkpointing" in each]
    assert ["selective" in each for each in again] == [True, False]
    full = ways_of_config({**FLAT, "train.activation_checkpointing": "full"}, NOTE)
    assert "activation_checkpointing" not in " ".join(full)
    assert not any(
        "train.microbatch" in each for each in ways_of_config({**FLAT, "train.microbatch": 1}, NOTE)
    )


def test_a_smaller_model_is_a_way_only_where_what_stays_is_most() -> None:
    assert not any("smaller model" in each for each in ways_of_config(FLAT, NOTE))
    heavy = replace(NOTE, owners={**NOTE.owners, "optimizer": 600 * MB}, peak_bytes=1100 * MB)
    assert "smaller model" in ways_of_config(FLAT, heavy)[-1]
    assert "smaller model" in ways_of_script(heavy, None)[-1]


KINDS = {
    "text": RunConfig.model_validate({"data": {"source": "python-stdlib"}}),
    "encoder": FinetuneConfig.model_validate({"task": "tokens", "data": {"file": "a"}, "model": {"path": "DIR"}}),
    "decoder": CausalConfig.model_validate({"task": "text", "data": {"file": "a"}, "model": {"path": "DIR", "max_tokens": 90}}),
    "adapter": CausalConfig.model_validate({"task": "text", "data": {"file": "a"}, "model": {"path": "DIR", "lora": {"rank": 4}}}),
    "module": ModuleConfig(),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_ways_are_settings_that_this_kind_of_training_has(kind: str) -> None:
    heavy = replace(NOTE, owners={**NOTE.owners, "frozen weights": 600 * MB}, peak_bytes=1100 * MB)
    changed = {"train.precision": "fp32", "checkpoint.background": True, "train.microbatch": 6}
    changed |= {"train.loss": "plain", "train.activation_checkpointing": "none"}
    settings = Settings(KINDS[kind].replaced(changed))
    *ways, last = ways_of_config(settings.config.flat(), heavy)
    for way in ways:
        words, _, effect = way.partition(": ")
        assert settings.with_words(words.split()).config != settings.config
        assert effect
    named = {word.partition("=")[0] for way in ways for word in way.partition(":")[0].split()}
    shared = {
        "train.microbatch",
        "train.grad_accum_steps",
        "train.precision",
        "checkpoint.background",
    }
    own = {
        "text": {"train.loss", "train.activation_checkpointing"},
        "encoder": {"model.max_tokens", "model.lora.rank"},
    }
    own |= {"decoder": {"model.max_tokens", "model.lora.rank"}, "adapter": {"model.lora.quantize"}}
    assert named - {"train.host_memory"} == shared | own.get(kind, set())
    models = {"text": " (model.layers, model.width)", "module": ""}
    assert last.startswith(f"a smaller model{models.get(kind, ' (model.path)')}, or ")


def test_an_export_that_is_refused_memory_is_told_to_be_made_again() -> None:
    (way,) = ways_of_config(KINDS["encoder"].flat(), replace(NOTE, phase="export"))
    assert way.startswith("the same command again")


def test_memory_that_grew_comes_before_a_smaller_batch() -> None:
    flat = [TelemetrySample(sampled_at=at, process_bytes=500 * MB) for at in range(9)]
    assert ways_of_script(NOTE, None, flat)[0].startswith("half the batch")
    grew = [replace(each, process_bytes=(300 + 70 * n) * MB) for n, each in enumerate(flat)]
    assert ways_of_script(NOTE, None, grew)[0].startswith("memory grew from 580 to 860 MB")
    assert ways_of_script(replace(NOTE, step=3), None, grew)[0].startswith("half the batch")


class OutOfMemoryError(RuntimeError):
    """By its name the same as torch's."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("x"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (ValueError("out of memory"), False),
        (RuntimeError("shapes differ"), False),
        (None, False),
    ],
)
def test_an_error_for_memory_is_known_by_class_or_words(
    error: BaseException | None, expected: bool
) -> None:
    assert (memory_refusal(error) is not None) is expected


def test_an_error_for_memory_is_found_behind_the_one_that_it_led_to() -> None:
    error = RuntimeError("DataLoader worker (pid(s) 5) exited unexpectedly")
    assert memory_refusal(error) is None
    error.__cause__ = RuntimeError("DataLoader worker (pid 5) is killed by signal: Killed. ")
    assert memory_refusal(error) is error.__cause__
