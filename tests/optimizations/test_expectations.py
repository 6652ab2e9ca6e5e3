"""What techniques say to expect, from the evidence of the findings that ask for them."""

from __future__ import annotations

import pytest

from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.optimization import leaving


def test_amdahl() -> None:
    expect = leaving("share", 0.0, 0.5)
    assert expect({"share": 0.5}, True) == pytest.approx((1 / 0.75, 2.0))
    assert expect({"share": None}, True) is None
    assert expect({}, True) is None
    assert expect({"share": 1.0}, True) is None


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
        ),
        0.4,
    ) | {"product_s": 1e-3, "forward_backward_fraction": 0.4, "padded_fraction": 1.0}
    found = technique.expect({**evidence, "fetch_cpu_fraction": 0.9}, 2)
    assert found is not None
    low, high = found
    assert 1 < low < high <= 1 / (1 - 0.4) + 1e-9
