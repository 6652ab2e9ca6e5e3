"""When batches may be made ahead of steps: then a fast step may use up what slow ones left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.core.census import Census, LoaderUse
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.doctor.trial_reports import can_be_toggled, most_children

ENVIRONMENT = Environment("cpu", 1, None, 2, 2.0, None, "Linux", None, "3", None, None, None, "0")
LOADER = LoaderUse(
    site="train.py:3", trains=True, dataset="D", dataset_site=None, collate_site=None, iterable=False,
    in_memory=None, num_workers=2, batch_size=8, pin_memory=False, persistent_workers=False,
    prefetch_factor=2, num_batches=95, batch_bytes=None, wait_s=None, wait_p99_s=None, fetch_s=0.01,
    collate_s=None, pin_s=None, fetch_cpu_fraction=None, num_epochs=1, epoch_start_s=None, per_epoch=None,
)  # fmt: skip


def seen(*loaders: LoaderUse, looked: tuple[str, ...] = ("loaders",)) -> Measurement:
    """95 counted steps of 0.1 s."""
    records = tuple(
        StepRecord(step, 0.1, samples=64, tags=("warmup",) if step < 5 else ())
        for step in range(100)
    )
    census = Census(device="cpu", loaders=loaders, seen=looked)
    return Measurement(
        "script", ("python",), Plan(5, 95, 60.0), ENVIRONMENT, records, census=census
    )


def test_workers_that_are_mostly_idle_do_no_harm() -> None:
    assert most_children(seen()) == 0
    assert most_children(seen(replace(LOADER, num_workers=0, fetch_s=None))) == 0
    assert most_children(seen(LOADER, replace(LOADER, trains=False, num_workers=3))) == 5


@pytest.mark.parametrize(
    "measured",
    [
        seen(replace(LOADER, fetch_s=0.06)),  # 30 % of the time of its two workers
        seen(replace(LOADER, num_batches=600)),
        seen(replace(LOADER, fetch_s=None)),
        seen(looked=()),
        replace(seen(), census=None),
        replace(seen(), records=()),
    ],
)
def test_workers_that_are_busy_or_not_known_may_have_batches_ready(measured: Measurement) -> None:
    assert most_children(measured) is None


@pytest.mark.parametrize(
    ("said", "children", "can"),
    [
        ('{"can": ["a"], "children": 2, "threads": []}', 2, {"a"}),
        ('{"can": ["a"], "children": 3, "threads": []}', 2, set()),
        ('{"can": ["a"], "children": 0, "threads": ["prefetcher"]}', 2, set()),
        ('{"can": ["a"], "children": 0, "threads": []}', None, set()),
        ('{"can": ["a"]', 2, set()),
        ("[]", 2, set()),
    ],
)
def test_what_can_be_switched_is_what_said_so_with_nothing_unseen_beside_it(
    tmp_path: Path, said: str, children: int | None, can: set[str]
) -> None:
    (tmp_path / "turns.json").write_text(said)
    assert can_be_toggled(tmp_path, children) == can
    assert can_be_toggled(tmp_path / "missing", children) == set()
