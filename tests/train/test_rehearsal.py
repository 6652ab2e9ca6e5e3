"""A rehearsal asks for what a training asks for, and computes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hotloop.core.memory_use import Rehearsed
from hotloop.core.progress import silent
from hotloop.core.settings import load_settings, store_settings
from hotloop.hardware.device import read_machine
from hotloop.models.shape import num_weights
from hotloop.optimizations.catalogue import resolve
from hotloop.probe.memory_watch import statm_bytes
from hotloop.train.batches import training_batches
from hotloop.train.memory import predict
from hotloop.train.opened_text import opened_text
from hotloop.train.rehearsal import Heap, Uncomputed
from hotloop.train.rendezvous import Rendezvous
from hotloop.train.run import decoder_shape
from hotloop.train.text_work import TextWork

BYTES = 256
"""Ids of the tokenizer `bytes`, without its end of text."""
LARGER = ("model.width=256", "model.layers=3", "model.context=64", "train.microbatch=16")
AVERAGED = (*LARGER, "averaging.name=ema")


def test_what_would_be_computed_is_allocated_and_not_written() -> None:
    heap = Heap(keeps=False)
    a, b = torch.ones(2048, 8), torch.ones(8, 8192)
    uncomputed = Uncomputed(heap)
    before, resident = heap.live_now(), statm_bytes(1) or 0
    with uncomputed:
        product = a @ b
        again = product.add_(1.0)
        rows = product.view(-1)
    assert product.shape == (2048, 8192)
    assert heap.live_now() - before == pytest.approx(product.nbytes, rel=0.05)
    assert (statm_bytes(1) or 0) - resident < product.nbytes / 4
    assert again.data_ptr() == product.data_ptr() == rows.data_ptr()
    assert bool((b == 1).all())


def test_what_is_tiny_is_computed_since_python_reads_it() -> None:
    with Uncomputed(Heap(keeps=False)):
        count = torch.zeros(()) + 1
        count.add_(1)
        assert count.item() == 2


def test_the_peak_of_what_was_live_is_remembered_after_it_is_freed() -> None:
    heap = Heap(keeps=False)
    uncomputed = Uncomputed(heap)
    heap.clear()
    heap.look()
    before = heap.live_bytes
    with uncomputed:
        a = torch.empty(4096, 4096)
        a = a + a  # two at once
        del a
    assert heap.live_bytes - before == pytest.approx(128 << 20, rel=0.05)
    assert heap.live_now() < before + (8 << 20)


Rehearse = Callable[..., Rehearsed]


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, ...], Rehearsed]:
    """Rehearsals, by settings and program: each takes four seconds."""
    return {}


@pytest.fixture
def rehearse(
    tiny_config: Path, tmp_path: Path, known: dict[tuple[str, ...], Rehearsed]
) -> Rehearse:
    """In a fresh process, as `hotloop fit` does it."""

    def call(
        *overrides: str, program: tuple[str, ...] = ("-m", "hotloop.train.rehearsal")
    ) -> Rehearsed:
        settings, _ = resolve(
            load_settings(tiny_config, overrides),
            read_machine(torch.device("cpu"), compiles=False),
        )
        key = (settings.config.model_dump_json(), *program)
        if key in known:
            return known[key]
        store_settings(settings, tmp_path / "config.yaml")
        with (tmp_path / "printed").open("w") as printed:
            subprocess.run(
                [sys.executable, *program, "config.yaml", "result.json"],
                cwd=tmp_path,
                env=os.environ,
                stdout=printed,
                check=True,
            )
        known[key] = Rehearsed(**json.loads((tmp_path / "result.json").read_text()))
        return known[key]

    return call


def test_weights_gradients_and_the_optimizer_are_counted_exactly(
    rehearse: Rehearse, tiny_config: Path
) -> None:
    found = rehearse(*AVERAGED)
    shape = decoder_shape(load_settings(tiny_config, LARGER).config, BYTES + 1)
    weights = 4 * num_weights(shape)
    assert found.weights_bytes == found.gradients_bytes == found.averaged_bytes
    assert found.weights_bytes == pytest.approx(weights, rel=0.01)
    assert found.optimizer_bytes == pytest.approx(2 * found.weights_bytes, rel=0.01)


def test_a_trace_without_any_allocator_finds_the_same_tensors_alive(
    rehearse: Rehearse, tiny_config: Path
) -> None:
    found = rehearse(
        *LARGER, "train.grad_accum_steps=2", "optimizer.fused=false", "train.clip=builtin"
    )
    settings, _ = resolve(
        load_settings(
            tiny_config,
            (*LARGER, "train.grad_accum_steps=2", "optimizer.fused=false", "train.clip=builtin"),
        ),
        read_machine(torch.device("cpu"), compiles=False),
    )
    traced = predict(settings.config, BYTES + 1)
    assert traced.activations_bytes == pytest.approx(found.activations_bytes, rel=0.05)
    # On a GPU gradients are cleared after the update; on a CPU they are kept through the forward.
    assert traced.live_bytes == pytest.approx(found.live_bytes, rel=0.25)
    assert found.steps_bytes - found.start_bytes > found.live_bytes


def test_activations_grow_with_the_microbatch_and_weights_do_not(rehearse: Rehearse) -> None:
    small, large = rehearse(*AVERAGED), rehearse(*AVERAGED, "train.microbatch=32")
    assert large.activations_bytes == pytest.approx(2 * small.activations_bytes, rel=0.05)
    assert large.weights_bytes == small.weights_bytes
    assert large.whole_bytes >= large.steps_bytes > small.steps_bytes


def test_of_buckets_the_longest_rows_are_rehearsed_also_where_the_first_batch_has_none(
    rehearse: Rehearse,
) -> None:
    """The first batch of this seed is of shorter ones, whose attention keeps less."""
    plain = (*LARGER, "train.attention=plain", "optimizer.fused=false", "train.clip=builtin")
    rows = rehearse(*plain)
    buckets = rehearse(*plain, "data.layout=bucket", "data.seed=2")
    assert buckets.activations_bytes == pytest.approx(rows.activations_bytes, rel=0.02)


def test_a_soak_begins_with_the_longest_rows_of_buckets(
    tiny_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_settings(tiny_config, [*LARGER, "data.layout=bucket", "data.seed=2"]).config
    with opened_text(config, Rendezvous(), progress=silent) as text:
        work = TextWork(config, training_batches(config, text), None)
        widths = [_width(work, step) for step in range(work.batches.num_batches)]
        monkeypatch.setenv("HOTLOOP_LONGEST_FIRST", "1")
        assert widths[0] < max(widths) == _width(work, 0)
        assert _width(work, 1) == widths[1]


def _width(work: TextWork, step: int) -> int:
    data = work.read(step, own=range(work.config.train.grad_accum_steps), pinned=False)
    return max(each[0].shape[-1] for each in data.microbatches)


def test_keeping_products_is_between_keeping_all_and_computing_all_again(tiny_config: Path) -> None:
    again, left = "train.activation_checkpointing", {}
    for value in ("none", "selective", "full"):
        words = (*LARGER, "train.loss=chunked", "train.compile=false", f"{again}={value}")
        given, machine = load_settings(tiny_config, words), read_machine(torch.device("cpu"))
        traced = predict(resolve(given, machine)[0].config, BYTES + 1)
        left[value] = traced.activations_bytes
    assert left["full"] < 0.6 * left["selective"]
    assert left["selective"] < 0.85 * left["none"]


def test_addresses_set_aside_for_kept_memory_are_not_counted(rehearse: Rehearse) -> None:
    default, keep = (
        rehearse(*AVERAGED, f"train.host_memory={each}") for each in ("default", "keep")
    )
    assert keep.live_bytes == pytest.approx(default.live_bytes, rel=0.2)
    assert keep.steps_bytes < 2 * default.steps_bytes


LIVE = """
import sys
from hotloop.train import rehearsal
made = []
class Heap(rehearsal.Heap):
    def __init__(self, **rest):
        super().__init__(**rest)
        made.append(self)
rehearsal.Heap = Heap
code = rehearsal.main(*sys.argv[1:])
print(made[0].live_bytes)
sys.exit(code)
"""


def test_a_save_beside_the_steps_takes_weights_and_optimizer_once_more(
    rehearse: Rehearse, tmp_path: Path
) -> None:
    many = (*LARGER, "model.width=1024", "model.layers=2", "train.microbatch=64")
    live = []  # the most in use of the whole: how many holes there are beside it differs from process to process
    for background in ("false", "true"):
        found = rehearse(*many, f"checkpoint.background={background}", program=("-c", LIVE))
        live.append(int((tmp_path / "printed").read_text().split()[-1]))
        state = found.weights_bytes + found.optimizer_bytes
    within, beside = live
    assert beside - within == pytest.approx(state, rel=0.1)
