"""What techniques say to expect, from the evidence of the findings that ask for them, and where they are tried at all."""

from __future__ import annotations

from typing import Any

import pytest

from hotloop.core.census import (
    CallUse,
    Census,
    CollectionUse,
    DdpUse,
    DebugSwitch,
    LineUse,
    LoaderUse,
    PaddingUse,
)
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.optimization import leaving

LOADER = LoaderUse(
    **{**dict.fromkeys(LoaderUse.__dataclass_fields__), "trains": True, "num_batches": 9}
)  # type: ignore[arg-type]


def padding(*, longest: float | None) -> PaddingUse:
    return PaddingUse(100, 0.5, "attention_mask", longest_padded_fraction=longest)


def test_amdahl() -> None:
    expect = leaving("share", 0.0, 0.5)
    assert expect({"share": 0.5}, True) == pytest.approx((1 / 0.75, 2.0))
    assert expect({"share": None}, True) is None
    assert expect({}, True) is None
    assert expect({"share": 1.0}, True) is None


def test_cutting_is_expected_to_bring_what_the_longest_rows_leave() -> None:
    expect = CATALOGUE["dynamic_padding"].expect
    assert expect is not None
    seen = {"padded_fraction": 0.8, "forward_backward_fraction": 0.9, "gain_at_longest": 1.25}
    assert expect(seen, 8) == pytest.approx((1 / (1 - 0.2 / 3), 1.25))
    assert expect({**seen, "gain_at_longest": None}, 8) == pytest.approx(
        (1 / (1 - 0.72 / 3), 1 / (1 - 0.72))
    )


def test_workers_hide_what_waits_and_share_the_cpus_with_what_computes() -> None:
    expect = CATALOGUE["loader_workers"].expect
    assert expect is not None
    waits = {"data_wait_fraction": 0.8, "num_workers": 0, "fetch_cpu_fraction": 0.01}
    assert expect(waits, 8) == pytest.approx((3.75, 5.0))
    assert expect(waits, 2) == pytest.approx((1.875, 2.5))
    computes = {"data_wait_fraction": 0.8, "num_workers": 0, "fetch_cpu_fraction": 0.99}
    assert expect(computes, 2) == pytest.approx((1.5, 2.0))
    assert expect({**computes, "num_workers": 2}, 4) is None
    assert expect(computes, 0) is None
    # One worker beside a step that leaves the CPUs idle is worth what they do at once: 1.9 times, not 1.
    step = {"data_wait_fraction": 0.465, "num_workers": 0, "fetch_cpu_fraction": 0.975}
    assert expect({**step, "cpus_busy_fraction": 0.30}, 1) == pytest.approx(
        (1.402, 1.869), rel=1e-3
    )
    assert expect({**step, "cpus_busy_fraction": 0.9}, 1) == pytest.approx((1.0, 1 / 0.9))


def test_casts_of_short_products_cost_more_than_they_save() -> None:
    expect = CATALOGUE["precision"].expect
    assert expect is not None
    long = expect({"product_fraction": 0.6, "product_s": 1e-3}, "bf16")
    assert long == pytest.approx(
        (1 / (1 - 0.6 * (1 - 1 / 1.8 - 0.04)), 1 / (1 - 0.6 * (1 - 1 / 4 - 0.01)))
    )
    short = expect({"product_fraction": 0.6, "product_s": 3e-5}, "bf16")
    assert short is not None
    assert short[0] < 1 < short[1]
    others = expect({"product_fraction": 0.6, "product_s": 1e-3, "others_fraction": 0.2}, "bf16")
    assert others is not None
    assert others[0] == long[0]
    assert others[1] > long[1]
    gpu = {"product_fraction": 0.6, "product_s": 3e-5, "fast_dtypes": "bfloat16, tf32"}
    assert expect(gpu, "bf16") is None  # nothing is known of casts there


def test_compiling_short_operations_may_cost_more_than_it_saves() -> None:
    expect = CATALOGUE["compile"].expect
    assert expect is not None
    assert expect({"launch_fraction": 0.4}, True) == pytest.approx((1 / 1.2, 1 / 0.68))


@pytest.mark.parametrize("name", [name for name, each in CATALOGUE.items() if each.expect])
def test_an_expectation_is_a_gain_within_what_the_finding_allows(name: str) -> None:
    technique = CATALOGUE[name]
    assert technique.expect is not None
    evidence = dict.fromkeys(
        (
            *("optimizer_fraction", "product_fraction", "elementwise_fraction"),
            *("collection_fraction", "data_wait_fraction", "late_fraction", "fill_fraction"),
            "checkpoint_fraction",
        ),
        0.4,
    ) | {"product_s": 1e-3, "forward_backward_fraction": 0.4, "padded_fraction": 1.0}
    evidence |= {"microbatches": 8, "launch_fraction": 0.4}
    found = technique.expect({**evidence, "fetch_cpu_fraction": 0.9}, 2)
    assert found is not None
    low, high = found
    assert 1 < low < high <= 1 / (1 - 0.4) + 1e-9


def line(inside: str) -> LineUse:
    return LineUse("forward", "train.py:3", "main", 0.5, inside=inside)


def call(what: str, pageable: bool | None = None) -> CallUse:
    return CallUse(what, "train.py:3", 10, 0.1, 100, pageable)


@pytest.mark.parametrize(
    ("name", "census", "values"),
    [
        ("attention", Census(lines=(line("model.attend"),)), ()),
        ("attention", Census(lines=(line("transformers.models.x.eager"),)), ("sdpa",)),
        ("channels_last", Census(channels_last=True), ()),
        ("channels_last", Census(channels_last=False), (True,)),
        ("ddp_bucket_view", Census(), ()),
        ("ddp_bucket_view", Census(ddp=DdpUse(True, False, 0)), (True,)),
        ("ddp_bucket_view", Census(ddp=DdpUse(True, True, 80)), ()),
        ("ddp_unused_search", Census(), ()),
        ("ddp_unused_search", Census(ddp=DdpUse(True, False, 0)), (False,)),
        ("ddp_unused_search", Census(ddp=DdpUse(True, True, 80)), ()),
        ("ddp_unused_search", Census(ddp=DdpUse(True, True, None)), ()),
        ("ddp_unused_search", Census(ddp=DdpUse(False, False, 0)), ()),
        ("deferred_reads", Census(syncs=(call("item"),), seen=("syncs",)), (True,)),
        ("deferred_reads", Census(syncs=(call("cpu"),), seen=("syncs",)), ()),
        ("dynamic_padding", Census(), ()),
        ("dynamic_padding", Census(padding=padding(longest=0.3)), ()),
        ("dynamic_padding", Census(padding=padding(longest=None), loaders=(LOADER,)), (8,)),
        ("dynamic_padding", Census(padding=padding(longest=0.3), loaders=(LOADER,)), (8,)),
        ("dynamic_padding", Census(padding=padding(longest=0.495), loaders=(LOADER,)), ()),
        ("fewer_logs", Census(seen=("logs",)), ()),
        ("fewer_logs", Census(logs=(call("print"),), seen=("logs",)), (100,)),
        ("gc_schedule", Census(collections=CollectionUse(9, 0.1, 1, 0.05)), (100,)),
        ("gc_schedule", Census(collections=CollectionUse(0, 0.0, 0, 0.0)), ()),
        ("pinned_copies", Census(copies=(call("Tensor.to", pageable=True),)), (True,)),
        ("pinned_copies", Census(copies=(call("Tensor.to", pageable=False),)), ()),
        ("sdpa_backend", Census(device="cuda:0", attention=("sdpa:math",)), ("cudnn",)),
        ("sdpa_backend", Census(device="cuda:0", attention=("sdpa:cudnn",)), ()),
        ("sdpa_backend", Census(device="cuda:0", attention=("plain",)), ()),
        ("sdpa_backend", Census(device="cpu", attention=("sdpa:math",)), ()),
    ],
)
def test_values_are_tried_where_the_census_shows_a_use(
    name: str, census: Census, values: tuple[Any, ...]
) -> None:
    values_for = CATALOGUE[name].values_for
    assert values_for is not None
    assert values_for(census) == values


@pytest.mark.parametrize(
    ("name", "switch"),
    [
        ("uninitialized_fill", "fill_uninitialized_memory"),
        ("debug_environment", "TORCH_DISTRIBUTED_DEBUG"),
        ("determinism", "cudnn.deterministic"),
    ],
)
def test_each_is_tried_where_its_setting_was_on(name: str, switch: str) -> None:
    technique = CATALOGUE[name]
    assert technique.values_for is not None
    on = Census(device="cuda:0", debug_switches=(DebugSwitch(switch),))
    off, unknown = Census(device="cuda:0", debug_switches=()), Census(device="cuda:0")
    assert [technique.values_for(each) for each in (on, off, unknown)] == [(False,), (), ()]
    if name != "uninitialized_fill":
        assert [technique.observed(each, False) for each in (on, off, unknown)] == [
            False,
            True,
            None,
        ]


def test_field_of_the_census_shows_what_took_effect() -> None:
    observed = CATALOGUE["channels_last"].observed
    seen = (Census(channels_last=True), Census(channels_last=False), Census())
    assert [observed(census, True) for census in seen] == [True, False, None]


def test_what_leaves_out_what_the_user_asked_for_is_never_kept() -> None:
    what_ifs = {name for name, technique in CATALOGUE.items() if technique.what_if}
    assert what_ifs == {"checkpointing", "deferred_reads", "determinism", "fewer_logs"}
