"""Copies, syncs, precision, kernels, memory and communication."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from script_inputs import (
    BUSY_DEVICE,
    GPU_HEALTHY,
    HEALTHY,
    LOADER,
    LONG,
    STEP,
    codes,
    found,
    lines,
    only,
    script,
    steps,
    with_phase,
)

from hotloop.core.census import SEVERAL_UPDATES, CallUse, Census, DdpUse, OperatorUse
from hotloop.core.measurement import Measurement
from hotloop.core.step import StepRecord
from hotloop.judge.diagnose import diagnose

HALF_IDLE = {"compute": 0.05, "idle": 0.05}


def on_gpu(
    census: Census = GPU_HEALTHY, device: dict[str, float] = BUSY_DEVICE, **host: float
) -> Measurement:
    return script(steps(host or STEP, device=device), census)


def changed(census: Census, *operators: OperatorUse, **changes: Any) -> Census:
    return replace(census, operators=operators, **changes)


def test_a_healthy_gpu_run_has_no_finding() -> None:
    diagnosis = diagnose(on_gpu())
    assert (diagnosis.findings, diagnosis.bound) == ((), "compute")


def pinned(seconds: float, **changes: Any) -> Census:
    loader = replace(LOADER, pin_memory=True, pin_s=seconds, **changes)
    return replace(HEALTHY, loaders=(loader,))


def test_pinning_in_the_main_process_is_told_from_making_batches() -> None:
    host = {"data_wait": 0.06, "forward": 0.02, "backward": 0.02}
    both = diagnose(script(steps(host), pinned(0.04, fetch_s=0.06)))
    assert codes(both) == ["HL201", "HL102"]
    assert both.findings[0].gain_at_most == pytest.approx(1 / 0.6)
    assert both.findings[1].gain_at_most == pytest.approx(1 / 0.8)
    assert diagnose(script(steps(), pinned(0.0009))).findings == ()
    # Workers: a thread pins.
    assert found(script(steps(host), pinned(0.04, num_workers=2)), "HL201") is None


def test_pinning_never_counts_more_than_the_wait_that_holds_it() -> None:
    host = {"data_wait": 0.02, "forward": 0.08}
    assert only(script(steps(host), pinned(5.0)), "HL201").gain_at_most == pytest.approx(1.25)


COPY = CallUse("Tensor.to", "train.py:44", num=60, seconds=0.3, num_bytes=60 << 20, pageable=True)
COPYING = {"host_to_device": 0.05, "forward": 0.02, "backward": 0.03}


def test_pageable_copies_count_while_the_device_idles() -> None:
    census = replace(GPU_HEALTHY, copies=(COPY,))
    finding = only(on_gpu(census, HALF_IDLE, **COPYING), "HL202")
    assert finding.gain_at_most == pytest.approx(1 / 0.95)
    assert finding.site == "train.py:44"
    assert found(on_gpu(census, BUSY_DEVICE, **COPYING), "HL202") is None
    assert found(script(steps(COPYING), replace(HEALTHY, copies=(COPY,))), "HL202") is None
    slow = replace(GPU_HEALTHY, copies=(replace(COPY, seconds=1e6),))
    assert only(on_gpu(slow, HALF_IDLE, **COPYING), "HL202").gain_at_most == pytest.approx(2)


def test_pinned_bytes_count_by_the_devices_copies() -> None:
    census = replace(GPU_HEALTHY, copies=(replace(COPY, pageable=False),))
    device = {"compute": 0.08, "memcpy": 0.02}
    finding = only(on_gpu(census, device), "HL203")
    assert finding.gain_at_most == pytest.approx(1.25)
    assert finding.evidence["bytes_per_step"] == 1 << 20
    assert diagnose(on_gpu(census, {"compute": 0.096, "memcpy": 0.004})).findings == ()


SYNC = CallUse("item", "train.py:60", num=60, seconds=1.0, inside="__main__.train")
SYNCING = {"forward": 0.02, "backward": 0.03, "sync": 0.05}


def test_a_sync_per_step_counts_on_a_device_that_idles() -> None:
    census = replace(GPU_HEALTHY, syncs=(SYNC,))
    finding = only(on_gpu(census, HALF_IDLE, **SYNCING), "HL204")
    assert (finding.site, finding.gain_is_loose) == ("train.py:60", False)
    assert finding.gain_at_most == pytest.approx(2)
    assert diagnose(on_gpu(census, HALF_IDLE, **SYNCING)).bound == "sync"
    assert found(on_gpu(census, BUSY_DEVICE, **SYNCING), "HL204") is None
    rare = replace(GPU_HEALTHY, syncs=(replace(SYNC, num=59),))
    assert found(on_gpu(rare, HALF_IDLE, **SYNCING), "HL204") is None
    assert found(script(steps(SYNCING), replace(HEALTHY, syncs=(SYNC,))), "HL204") is None


def test_a_sync_beside_waits_for_data_promises_nothing() -> None:
    host = {"data_wait": 0.04, "forward": 0.02, "backward": 0.03, "sync": 0.01}
    finding = found(on_gpu(replace(GPU_HEALTHY, syncs=(SYNC,)), HALF_IDLE, **host), "HL204")
    assert finding is not None
    assert finding.gain_is_loose


def test_the_trainers_own_questions_are_told_from_the_scripts() -> None:
    asks = replace(SYNC, what="bool", num=120, inside="transformers.trainer._inner_training_loop")
    assert only(on_gpu(replace(GPU_HEALTHY, syncs=(asks,)), HALF_IDLE, **SYNCING), "HL205").evidence["syncs_per_step"] == 2  # fmt: skip
    own = replace(asks, inside="__main__.train")
    assert only(on_gpu(replace(GPU_HEALTHY, syncs=(own,)), HALF_IDLE, **SYNCING), "HL204")


FLOAT32 = OperatorUse("aten::addmm", "float32", num=40, self_s=0.05, site="model.py:7")


def test_float32_products_count_by_their_share_of_the_step() -> None:
    sick = changed(HEALTHY, FLOAT32, matmul_dtypes=("float32",))
    finding = only(script(steps(), sick), "HL301")
    assert finding.gain_at_most == pytest.approx(1 / (1 - 0.5 * 15 / 16))
    assert not finding.gain_is_loose
    assert (finding.site, finding.optimization) == ("model.py:7", "precision")
    little = changed(sick, replace(FLOAT32, self_s=0.019))
    assert diagnose(script(steps(), little)).findings == ()
    assert diagnose(script(steps(), replace(sick, fast_dtypes=()))).findings == ()
    slower = replace(sick, fast_dtypes=("float32", "bfloat16"))
    assert diagnose(script(steps(), slower)).findings == ()
    assert diagnose(script(steps(), replace(sick, matmul_dtypes=()))).findings == ()
    unseen = replace(sick, operators=(), seen=tuple(set(sick.seen) - {"operators"}))
    diagnosis = diagnose(script(steps(), unseen))
    assert diagnosis.findings == ()
    assert any("operations of a step" in line for line in diagnosis.not_examined)


def test_threads_that_wait_for_their_turn_draw_out_products_so_that_no_gain_is_promised() -> None:
    def each(number: int, record: StepRecord) -> StepRecord:
        return with_phase(record, "eval", 0.3, "eval") if number % 10 == 5 else record

    census = changed(HEALTHY, FLOAT32, matmul_dtypes=("float32",), cpus=2.0, num_threads=2)
    assert codes(diagnose(script(steps(each=each), census))) == ["HL301", "HL702"]
    crowded = replace(census, machine_busy=0.97, foreign_busy=0.8)
    diagnosis = diagnose(script(steps(each=each), crowded))
    assert codes(diagnosis) == ["HL803", "HL702", "HL301"]
    assert diagnosis.findings[-1].gain_is_loose
    own = found(script(steps(each=each), replace(crowded, num_threads=1)), "HL301")
    assert own is not None
    assert not own.gain_is_loose, "one thread waits for no other"


def test_tf32_is_advised_where_nothing_shorter_is_fast() -> None:
    gpu = changed(GPU_HEALTHY, replace(FLOAT32, device_s=0.05), matmul_dtypes=("float32",))
    finding = only(on_gpu(replace(gpu, fast_dtypes=("tf32",))), "HL301")
    assert "set_float32_matmul_precision" in finding.advice


def test_products_in_tf32_can_still_be_shorter() -> None:
    gpu = changed(GPU_HEALTHY, replace(FLOAT32, device_s=0.05), matmul_dtypes=("tf32",))
    finding = only(on_gpu(replace(gpu, fast_dtypes=("bfloat16", "tf32"))), "HL301")
    assert finding.gain_at_most == pytest.approx(1 / (1 - 0.5 * 3 / 4))
    assert finding.evidence["matmul_dtypes"] == "tf32"
    assert finding.evidence["fast_dtypes"] == "bfloat16"
    assert diagnose(on_gpu(replace(gpu, fast_dtypes=("tf32",)))).findings == ()


def test_on_a_gpu_products_are_what_its_kernels_are_of() -> None:
    outer = OperatorUse("aten::linear", "float32", num=40, self_s=0.01)
    product = replace(FLOAT32, device_s=0.03)
    attention = OperatorUse("aten::_efficient_attention_forward", "float32", num=10, self_s=0.001, device_s=0.02)  # fmt: skip
    gpu = changed(GPU_HEALTHY, outer, product, attention, matmul_dtypes=("float32",))
    evidence = only(on_gpu(gpu), "HL301").evidence
    assert evidence["product_fraction"] == pytest.approx(0.5)
    assert evidence["product_s"] == pytest.approx(0.05 / 50)


TANH = OperatorUse("aten::tanh", "float32", num=20, self_s=0.03, site="model.py:9")


def test_eager_counts_by_the_operations_that_a_compiler_joins() -> None:
    sick = changed(HEALTHY, LONG, TANH, compiled=False)
    finding = only(script(steps(), sick), "HL302")
    assert finding.gain_at_most == pytest.approx(1 / 0.73)  # 3 % are not the model's time
    assert (finding.site, finding.optimization, finding.gain_is_loose) == ("model.py:9", "compile", False)  # fmt: skip
    assert diagnose(script(steps(), replace(sick, compiled=True))).findings == ()
    few = changed(sick, LONG, replace(TANH, self_s=0.022))
    assert diagnose(script(steps(), few)).findings == ()
    joined = changed(sick, LONG, replace(TANH, name="aten::gelu"))  # torch's own, in one pass
    assert diagnose(script(steps(), joined)).findings == ()
    casts = changed(sick, LONG, replace(TANH, name="aten::copy_"))  # autocast's, compiled or not
    assert diagnose(script(steps(), casts)).findings == ()
    # What the dataset may have computed is not the model's.
    loading = {"data_wait": 0.02, "forward": 0.02, "backward": 0.06}
    assert (
        found(script(steps(loading), changed(sick, LONG, replace(TANH, self_s=0.035))), "HL302")
        is None
    )
    # Nor is what an optimizer computes that is not fused.
    slow = replace(sick, optimizer="AdamW")
    assert codes(diagnose(script(steps(UPDATE), slow))) == ["HL401"]
    updates = changed(sick, LONG, replace(TANH, name="aten::_foreach_mul_"))
    assert diagnose(script(steps(), updates)).findings == ()


SHORT = OperatorUse("aten::add", "float32", num=4000, self_s=0.03)


def test_many_short_operations_are_launch_bound_and_named_once() -> None:
    sick = changed(HEALTHY, SHORT, compiled=False)
    diagnosis = diagnose(script(steps(), sick))
    assert codes(diagnosis) == ["HL303"]
    assert diagnosis.bound == "launch"
    assert diagnosis.findings[0].evidence["mean_operation_s"] == pytest.approx(7.5e-6)
    assert diagnose(script(steps(), replace(sick, compiled=True))).findings == ()
    long = replace(SHORT, name="aten::sort", num=1400)  # 21 us
    assert diagnose(script(steps(), changed(HEALTHY, long, compiled=False))).findings == ()
    # Most of the step is in a few long products: little is left to launch.
    mostly = replace(LONG, num=20, self_s=0.08)
    assert found(script(steps(), changed(HEALTHY, SHORT, mostly, compiled=False)), "HL303") is None


def test_a_gpu_is_launch_bound_only_where_nothing_else_explains_its_idling() -> None:
    sick = changed(GPU_HEALTHY, replace(SHORT, device_s=0.03), compiled=False)
    finding = only(on_gpu(sick, HALF_IDLE), "HL303")
    assert finding.evidence["launch_fraction"] == pytest.approx(0.5 - 0.01 - 0.02, abs=1e-9)
    assert diagnose(on_gpu(sick, HALF_IDLE)).bound == "launch"
    host = {"data_wait": 0.045, "forward": 0.02, "backward": 0.035}
    assert found(on_gpu(sick, HALF_IDLE, **host), "HL303") is None
    assert found(on_gpu(sick, BUSY_DEVICE), "HL303") is None


CONV = OperatorUse("aten::cudnn_convolution", "float16", num=50, self_s=0.001, device_s=0.05)


def test_convolutions_channels_first_and_untuned_are_found_on_a_gpu() -> None:
    sick = changed(GPU_HEALTHY, CONV, channels_last=False, cudnn_benchmark=False, input_shapes=1)
    diagnosis = diagnose(on_gpu(sick))
    assert codes(diagnosis) == ["HL304", "HL305"]
    assert diagnosis.findings[0].gain_at_most == pytest.approx(1 / 0.85)
    assert diagnosis.findings[1].gain_at_most == pytest.approx(1 / 0.9)
    well = replace(sick, channels_last=True, cudnn_benchmark=True)
    assert diagnose(on_gpu(well)).findings == ()
    unknown = replace(sick, channels_last=None, cudnn_benchmark=None)
    assert diagnose(on_gpu(unknown)).findings == ()
    assert found(on_gpu(replace(sick, input_shapes=4)), "HL305") is None
    assert found(on_gpu(replace(sick, input_shapes=None)), "HL305") is None
    full = changed(sick, replace(CONV, dtype="float32"))
    assert found(on_gpu(full), "HL304") is None
    assert diagnose(script(steps(), replace(sick, device="cpu"))).findings == ()


SOFTMAX = OperatorUse("aten::_softmax", "float32", num=6, self_s=0.01, site="model.py:30")
SCORES = OperatorUse("aten::bmm", "float32", num=12, self_s=0.02)


def test_attention_written_out_is_a_softmax_with_its_products() -> None:
    sick = changed(HEALTHY, LONG, SOFTMAX, SCORES, attention=("plain",))
    finding = only(script(steps(), sick), "HL306")
    assert finding.gain_at_most == pytest.approx(1 / 0.7)
    assert (finding.site, finding.optimization) == ("model.py:30", "attention")
    lone = changed(sick, LONG, SOFTMAX, replace(SCORES, num=11))
    assert diagnose(script(steps(), lone)).findings == ()
    assert diagnose(script(steps(), changed(sick, LONG, SCORES))).findings == ()
    assert diagnose(script(steps(), replace(sick, attention=("sdpa:flash",)))).findings == ()
    math = only(script(steps(), replace(sick, attention=("sdpa:math",))), "HL306")
    assert math.title == "Attention runs in torch's unfused math kernel"
    assert math.optimization is None
    assert "a mask that needs gradients" in math.advice
    drawn = OperatorUse("aten::bernoulli_", "float32", num=12, self_s=0.001)
    dropping = changed(sick, LONG, SOFTMAX, SCORES, drawn, attention=("sdpa:math",))
    assert "takes no dropout" in only(script(steps(), dropping), "HL306").advice
    both = replace(sick, attention=("plain", "sdpa:math"))
    assert only(script(steps(), both), "HL306").optimization == "attention"
    small = changed(sick, LONG, replace(SOFTMAX, self_s=0.004), replace(SCORES, self_s=0.005))
    assert diagnose(script(steps(), small)).findings == ()


def test_a_mixture_of_experts_is_no_attention() -> None:
    """A softmax that gates, and batched products of the experts; no softmax of scores by heads."""
    experts = changed(HEALTHY, LONG, SOFTMAX, SCORES, attention=())
    assert diagnose(script(steps(), experts)).findings == ()


def test_a_softmax_and_what_it_calls_are_one() -> None:
    called = replace(SOFTMAX, name="aten::softmax", self_s=1e-5)
    seen = changed(HEALTHY, LONG, called, SOFTMAX, SCORES, attention=("plain",))
    assert only(script(steps(), seen), "HL306").evidence["softmaxes"] == 6


def recompiling(num: int, seconds: float, *tags: str) -> Measurement:
    def each(number: int, record: StepRecord) -> StepRecord:
        if number % 10 != 5:
            return record
        return with_phase(record, "forward", seconds, "recompile", *tags)

    reasons = ("tensor 'x' size mismatch at index 1",)
    return script(steps(each=each), replace(HEALTHY, num_recompiles=num, recompile_reasons=reasons))


@pytest.mark.parametrize("tags", [(), ("compile",)])
def test_recompiles_count_by_the_time_they_took(tags: tuple[str, ...]) -> None:
    diagnosis = diagnose(recompiling(6, 0.5, *tags))
    assert codes(diagnosis) == ["HL307"]
    share = 6 * 0.5 / (6 * 0.5 + 60 * 0.1)
    assert diagnosis.findings[0].gain_at_most == pytest.approx(1 / (1 - share))
    assert diagnosis.bound == "recompile"
    assert diagnose(recompiling(2, 0.5, *tags)).findings == ()
    assert diagnose(recompiling(6, 0.04, *tags)).findings == ()


def test_recompiles_in_every_step_count_by_what_torch_counted() -> None:
    every = steps(each=lambda _, record: replace(record, tags=("recompile",)))
    sick = replace(HEALTHY, num_recompiles=59, num_graphs=60, compile_s=4.0)
    finding = only(script(every, sick), "HL307")
    assert finding.evidence["recompile_fraction"] == pytest.approx(4.0 / 6.0 * 59 / 60)
    assert found(script(every, replace(sick, compile_s=None)), "HL307") is None


def test_graph_breaks_count_against_the_length_of_a_step() -> None:
    broken = replace(HEALTHY, num_graph_breaks=60, num_graphs=61)
    finding = only(script(steps(), broken), "HL308")
    assert finding.gain_is_loose
    assert diagnose(script(steps(), replace(broken, num_graph_breaks=40))).findings == ()
    assert diagnose(script(steps(), replace(broken, compiled=None))).findings == ()


UPDATE = {"forward": 0.03, "backward": 0.05, "optimizer": 0.02}


def test_an_optimizer_that_is_not_fused_counts_by_its_phase_on_a_cpu() -> None:
    sick = replace(HEALTHY, optimizer="AdamW(foreach)")
    finding = only(script(steps(UPDATE), sick), "HL401")
    assert finding.gain_at_most == pytest.approx(1 / (1 - 0.2 * 1.25))
    assert diagnose(script(steps(UPDATE), replace(sick, optimizer="AdamW(fused)"))).findings == ()


def test_an_optimizer_of_that_name_that_is_not_torchs_is_left_in_peace() -> None:
    for name in ("__main__.AdamW", "bitsandbytes.optim.adamw.AdamW"):
        assert diagnose(script(steps(UPDATE), replace(HEALTHY, optimizer=name))).findings == ()


def test_an_optimizer_is_shown_where_it_is_constructed() -> None:
    stepping = lines(("optimizer", "train", 0.2))
    sick = replace(HEALTHY, optimizer="AdamW", lines=stepping)
    assert only(script(steps(UPDATE), sick), "HL401").site == "train.py:50"
    constructed = replace(sick, optimizer_site="train.py:24")
    assert only(script(steps(UPDATE), constructed), "HL401").site == "train.py:24"


def test_on_a_gpu_the_update_counts_by_its_kernels_or_the_idle_device() -> None:
    sick = changed(
        GPU_HEALTHY,
        replace(LONG, self_s=0.001, device_s=0.05),
        OperatorUse("aten::_foreach_add_", "float32", num=20, self_s=0.001, device_s=0.01),
        optimizer="AdamW(foreach)",
    )
    assert only(on_gpu(sick, **UPDATE), "HL401").gain_at_most == pytest.approx(1 / 0.9)
    assert only(on_gpu(sick, HALF_IDLE, **UPDATE), "HL401").gain_at_most == pytest.approx(1.25)
    blind = replace(sick, operators=())
    assert only(on_gpu(blind, **UPDATE), "HL401").gain_is_loose


def test_a_small_batch_needs_an_idle_device_short_kernels_and_free_memory() -> None:
    sick = changed(
        GPU_HEALTHY,
        replace(SHORT, device_s=0.03),
        device_allocated_bytes=8 << 30,
        device_reserved_bytes=10 << 30,
    )
    assert codes(diagnose(on_gpu(sick, HALF_IDLE))) == ["HL501"]
    assert found(on_gpu(replace(sick, device_allocated_bytes=50 << 30), HALF_IDLE), "HL501") is None
    assert found(on_gpu(replace(sick, device_allocated_bytes=None), HALF_IDLE), "HL501") is None
    assert found(on_gpu(replace(sick, device_memory_bytes=0), HALF_IDLE), "HL501") is None
    assert found(on_gpu(sick), "HL501") is None


def accumulating(**changes: Any) -> Census:
    loader = replace(LOADER, num_batches=800)
    sick = changed(GPU_HEALTHY, replace(SHORT, device_s=0.03), loaders=(loader,), compiled=False)
    usual = {"microbatches": 8.0, "counted_steps": 100, "device_allocated_bytes": 8 << 30}
    return replace(sick, **{**usual, **changes})


def test_accumulation_is_reported_as_far_as_memory_holds_larger_microbatches() -> None:
    def fewest(**changes: Any) -> Any:
        finding = found(on_gpu(accumulating(**changes), HALF_IDLE), "HL504")
        return finding and finding.evidence["fewest_microbatches"]

    assert fewest() == 1
    assert fewest(device_allocated_bytes=20 << 30) == 4
    assert fewest(device_allocated_bytes=40 << 30) is None
    assert fewest(device_allocated_bytes=None) is None
    assert fewest(device_memory_bytes=None) is None


def test_only_passes_backward_of_as_many_batches_are_accumulation() -> None:
    def is_found(**changes: Any) -> bool:
        return found(on_gpu(accumulating(**changes), HALF_IDLE), "HL504") is not None

    one_batch = (replace(LOADER, num_batches=100),)
    assert is_found()
    assert not is_found(loaders=one_batch)  # a GAN
    assert not is_found(loaders=one_batch, microbatches=1.0)
    assert not is_found(notes=(SEVERAL_UPDATES,))
    assert not is_found(num_ranks=2)
    assert found(on_gpu(accumulating(), BUSY_DEVICE), "HL504") is None


def test_memory_that_is_asked_for_again_is_found_by_retries_or_by_what_is_held() -> None:
    assert codes(diagnose(on_gpu(replace(GPU_HEALTHY, alloc_retries=3)))) == ["HL502"]
    held = replace(GPU_HEALTHY, device_allocated_bytes=30 << 30, device_reserved_bytes=70 << 30)
    assert codes(diagnose(on_gpu(held))) == ["HL502"]
    # A tenth of the device: nobody is short of memory.
    tiny = replace(held, device_allocated_bytes=3 << 30, device_reserved_bytes=8 << 30)
    assert diagnose(on_gpu(tiny)).findings == ()
    assert diagnose(on_gpu(replace(GPU_HEALTHY, alloc_retries=0))).findings == ()


def creeping(per_step: int, until: int = 1000, num: int = 100) -> Measurement:
    def each(number: int, record: StepRecord) -> StepRecord:
        return replace(record, peak_bytes=(1 << 30) + per_step * min(number, until))

    return script(steps(num=num, each=each))


def test_memory_that_grows_without_end_is_found_and_costs_no_time() -> None:
    finding = only(creeping(20 << 20), "HL503")
    assert finding.gain_at_most == 1
    assert finding.evidence["bytes_per_step"] == pytest.approx(20 << 20)
    assert diagnose(creeping(13 << 20)).findings == ()  # 74 steps of it are less than 1 GiB
    assert diagnose(creeping(40 << 20, until=60)).findings == ()  # levels off
    assert diagnose(creeping(60 << 20, num=60)).findings == ()  # 45 steps are too few


def test_communication_counts_where_several_processes_train() -> None:
    host = {"forward": 0.03, "backward": 0.05, "grad_sync": 0.02}
    two = replace(
        HEALTHY, num_ranks=2, num_threads=4, parallel="DistributedDataParallel", microbatches=4.0
    )
    finding = only(script(steps(host), two), "HL601")
    assert finding.gain_at_most == pytest.approx(1.25)
    assert "no_sync" in finding.advice
    assert found(script(steps(host), replace(two, num_ranks=1)), "HL601") is None
    assert found(script(steps({**STEP, "grad_sync": 0.008}), two), "HL601") is None
    gpus = replace(GPU_HEALTHY, num_ranks=8)
    device = {"compute": 0.08, "communication": 0.02}
    assert only(on_gpu(gpus, device), "HL601").gain_at_most == pytest.approx(1.25)
    assert found(on_gpu(gpus, BUSY_DEVICE, **host), "HL601") is None


SEARCHES = DdpUse(find_unused_parameters=True, gradient_as_bucket_view=False, unused_bytes=0)


def test_search_for_unused_parameters_is_found_where_there_are_none() -> None:
    two = replace(HEALTHY, num_ranks=2, num_local_ranks=2, num_threads=4, ddp=SEARCHES)
    finding = only(script(steps(), two), "HL602")
    assert finding.optimization == "ddp_unused_search"
    for ddp in (
        replace(SEARCHES, unused_bytes=80),
        replace(SEARCHES, unused_bytes=None),
        replace(SEARCHES, find_unused_parameters=False),
        None,
    ):
        assert diagnose(script(steps(), replace(two, ddp=ddp))).findings == ()


def test_waiting_for_gradients_is_fixed_by_buckets_only_under_ddp() -> None:
    host = {"forward": 0.03, "backward": 0.05, "grad_sync": 0.02}
    two = replace(HEALTHY, num_ranks=2, num_local_ranks=2, num_threads=4)
    assert only(script(steps(host), two), "HL601").optimization is None
    ddp = replace(SEARCHES, find_unused_parameters=False)
    under = only(script(steps(host), replace(two, ddp=ddp)), "HL601")
    assert under.optimization == "ddp_bucket_view"
    has_it = replace(two, ddp=replace(ddp, gradient_as_bucket_view=True))
    other = only(script(steps(host), has_it), "HL601")
    assert other.optimization is None
    assert "gradient_as_bucket_view" not in other.advice
