"""Phases, lines and findings of sampled stacks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.stack_profile import StackProfile
from hotloop.doctor.live_process import Frame, LiveProcess, Stack
from hotloop.doctor.stack_phases import interval, profile_stacks

TORCH = "/venv/lib/python3.12/site-packages/torch"
MAIN = (Frame("<module>", "/work/train.py", 30), Frame("main", "/work/train.py", 20))
NEXT = Frame("_BaseDataLoaderIter.__next__", f"{TORCH}/utils/data/dataloader.py", 725)
FETCH = Frame("_MapDatasetFetcher.fetch", f"{TORCH}/utils/data/_utils/fetch.py", 54)
COLLATE = Frame("collate", f"{TORCH}/utils/data/_utils/collate.py", 150)
MODULE = Frame("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1786)
BACKWARD = Frame("Tensor.backward", f"{TORCH}/_tensor.py", 600)
STEP = Frame("Optimizer.profile_hook_step.<locals>.wrapper", f"{TORCH}/optim/optimizer.py", 530)
ADAM = Frame("_single_tensor_adam", f"{TORCH}/optim/adam.py", 475)
FUSED = Frame("_fused_adam", f"{TORCH}/optim/adam.py", 700)
COMPILED = Frame(
    "_TorchDynamoContext.__call__.<locals>.compile_wrapper", f"{TORCH}/_dynamo/eval_frame.py", 800
)
LOSS = Frame("cross_entropy", f"{TORCH}/nn/functional.py", 3400)
WORKER = Frame("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 350)
ITEM = Frame("Data.__getitem__", "/work/data.py", 7)
PROCESS = LiveProcess(7, 0.0, "/work", None, False, ())


def profile(*stacks: Stack, process: LiveProcess = PROCESS) -> StackProfile:
    return profile_stacks({(7, "7"): [*stacks] * 40}, process)


def looks_like(*stacks: Stack) -> list[str]:
    return [each.code for phase in profile(*stacks).phases for each in phase.worth_trying]


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        ((NEXT, FETCH, ITEM), "data_wait"),
        ((NEXT, FETCH, ITEM, MODULE), "data_wait"),  # a transform of images is a module
        ((MODULE, Frame("Net.forward", "/work/net.py", 9)), "forward"),
        ((BACKWARD, MODULE), "backward"),  # computed again for checkpointing
        ((STEP, ADAM), "optimizer"),
        ((STEP, Frame("closure", "/work/train.py", 12), MODULE), "forward"),
        ((Frame("LRScheduler.step", f"{TORCH}/optim/lr_scheduler.py", 150),), "unattributed"),
        ((Frame("save", f"{TORCH}/serialization.py", 900), MODULE), "checkpoint"),
        ((Frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 2800),), "grad_sync"),
        ((Frame("synchronize", f"{TORCH}/cuda/__init__.py", 1000),), "sync"),
        (
            (Frame("SummaryWriter.add_scalar", f"{TORCH}/utils/tensorboard/writer.py", 3),),
            "logging",
        ),
        ((LOSS,), "unattributed"),
        ((), "unattributed"),
    ],
)
def test_a_stack_is_in_the_phase_that_a_run_under_the_doctor_books(
    frames: Stack, phase: str
) -> None:
    assert [each.phase for each in profile((*MAIN, *frames)).phases] == [phase]


@pytest.mark.parametrize(
    ("frames", "codes"),
    [
        ((NEXT, FETCH, ITEM), ["HL102"]),
        ((NEXT, FETCH, COLLATE), ["HL103"]),
        ((NEXT,), ["HL101"]),
        ((MODULE,), ["HL301", "HL302"]),
        ((MODULE, COMPILED), ["HL301"]),
        ((STEP, ADAM), ["HL401"]),
        ((STEP, FUSED), []),
        ((Frame("metrics", "/work/metrics.py", 3),), ["HL801"]),
        ((Frame("decode_image", "/work/metrics.py", 3),), ["HL107"]),
        ((LOSS,), []),
    ],
)
def test_findings_that_it_looks_like_follow_from_what_is_on_the_stacks(
    frames: Stack, codes: list[str]
) -> None:
    assert looks_like((*MAIN, *frames)) == codes


def test_a_line_that_also_calls_the_model_is_computing_and_no_finding_of_its_own() -> None:
    assert looks_like((*MAIN, MODULE), MAIN) == ["HL301", "HL302"]
    elsewhere = (MAIN[0], MAIN[1]._replace(line=21))
    assert looks_like((*MAIN, MODULE), elsewhere) == ["HL301", "HL302", "HL801"]


def test_loader_workers_are_apart_and_named_by_their_own_lines() -> None:
    """Forked ones carry the stack of the process that they come from, up to the loader's call."""
    forked = (*MAIN, Frame("DataLoader.__iter__", NEXT.file, 500), WORKER)
    threads = {
        (7, "7"): [(*MAIN, NEXT)] * 40,
        (8, "8"): [(*forked, FETCH, ITEM)] * 30 + [(*forked, FETCH)] * 6 + [forked] * 4,
    }
    found = profile_stacks(threads, replace(PROCESS, pid=8))
    assert found.pid == 7
    assert found.workers is not None
    assert found.workers.fraction == 0.9
    assert [line.site for line in found.workers.lines] == ["data.py:7"]
    assert [each.code for each in found.phases[0].worth_trying] == ["HL104"]
    with pytest.raises(UsageError, match="makes batches for another process"):
        profile_stacks({(8, "8"): threads[8, "8"]}, PROCESS)


def test_the_thread_that_updates_is_examined_and_not_one_that_only_loads_or_plays() -> None:
    threads = {
        (7, "7"): [(*MAIN, NEXT)] * 10 + [MAIN] * 30,
        (7, "70"): [(*MAIN, BACKWARD)] + [MAIN] * 39,
        (8, "8"): [(*MAIN, MODULE)] * 40,
    }
    found = profile_stacks(threads, PROCESS)
    assert (found.pid, {each.phase for each in found.phases}) == (7, {"unattributed", "backward"})


def test_a_wait_for_the_gpu_is_told_by_the_text_of_the_line_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("total += loss.item()\n")
    stack = (Frame("main", str(script), 1),)
    os.utime(script, (1000.0, 1000.0))
    gpu = LiveProcess(7, 2000.0, str(tmp_path), None, True, ())
    assert profile(stack, process=gpu).phases[0].phase == "sync"
    assert profile(stack, process=replace(gpu, uses_gpu=False)).phases[0].phase == "unattributed"
    edited_since = replace(gpu, started_at=999.0)
    found = profile(stack, process=edited_since).phases[0]
    assert (found.phase, found.lines[0].text) == ("unattributed", None)


def test_an_interval_is_as_wide_as_the_stays_are_few() -> None:
    fast = interval([True, False, True, True] * 250)
    slow = interval(([True] * 375 + [False] * 125) * 2)
    assert fast[0] == slow[0] == 0.75
    assert fast[2] - fast[1] < 0.06
    assert slow[2] - slow[1] > 0.25
    assert interval([True] * 1000)[1] > 0.99
    assert interval([False])[2] > 0.7


def test_few_changes_of_phase_are_said() -> None:
    slow = [(*MAIN, NEXT)] * 500 + [(*MAIN, MODULE)] * 500
    assert "changed 1 times only" in profile_stacks({(7, "7"): slow}, PROCESS).notes[0]
    assert profile((*MAIN, NEXT), (*MAIN, MODULE)).notes == ()
