"""The judgement of batches that draw other random numbers, on made losses and logs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hotloop.core.judgement import Parity
from hotloop.core.parity_records import BatchRng, EpochStart, RngLog
from hotloop.core.step import StepRecord
from hotloop.judge.calibrated_parity import ComparedRun
from hotloop.judge.rng_parity import OTHER_RNG_RUNS, RngRun, judge_other_rng

SAME = Parity("same", "bitwise", num_steps=60, max_difference=0.0)


def losses(seed: int, *, noise: float = 0.05, rate: float = 1.0, moves: float = 2.0) -> list[float]:
    steps = np.arange(60)
    batch = 0.1 * np.random.default_rng(99).standard_normal(60)  # of a batch: common to all runs
    augmented = noise * np.random.default_rng(seed).standard_normal(60)
    return list(0.5 + moves * np.exp(-rate * steps / 30) + batch + augmented)


def compared(values: Sequence[float]) -> ComparedRun:
    return ComparedRun([StepRecord(n, 0.1, loss=float(v)) for n, v in enumerate(values)])


def log(
    seed: int,
    *,
    workers: int = 2,
    epochs: Sequence[int] = (11, 12),
    same: Sequence[str] = (),
    seeds: Sequence[str] = (),
    own: tuple[str, ...] = (),
) -> RngLog:
    """same: generators that every worker finds alike. seeds: those that batches leave alike."""
    batches = [
        BatchRng(
            epoch,
            f"batch-{number}",
            number % workers if workers else None,
            {
                name: "alike" if name in same else f"{epoch}-{number % max(workers, 1)}"
                for name in ("torch", "random", "numpy.random")
            },
            {
                name: "alike" if name in seeds else f"{seed}-{epoch}-{number}"
                for name in ("torch", "numpy.random")
            },
        )
        for epoch in epochs
        for number in range(4)
    ]
    return RngLog(
        tuple(batches), tuple(EpochStart(epoch, "loader", workers, own) for epoch in epochs)
    )


def judged(candidate: Sequence[float], held: RngLog, **made: float) -> Parity:
    runs = [RngRun(compared(losses(n, **made)), log(n, workers=0)) for n in range(OTHER_RNG_RUNS)]
    return judge_other_rng(runs, compared(candidate), RngRun(compared(losses(0)), held), SAME)


def test_other_numbers_of_the_same_distribution_learn_the_same_in_words() -> None:
    parity = judged(losses(50), log(0))
    assert (parity.result, parity.parity_class) == ("within_noise", "other_draws")
    assert "equal to the last bit over 60 steps" in parity.reason
    assert "4 baseline runs with other numbers" in parity.reason


def test_exchangeable_runs_are_hardly_ever_rejected() -> None:
    results = []
    for first in range(0, 1000, 5):
        runs = [RngRun(compared(losses(first + n)), log(n, workers=0)) for n in range(4)]
        own = compared(losses(first + 4))
        results.append(judge_other_rng(runs, own, RngRun(own, log(0)), SAME).result)
    assert results.count("within_noise") >= 0.99 * len(results)


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_losses_that_fall_otherwise_are_different(rate: float) -> None:
    parity = judged(losses(50, rate=rate), log(0))
    assert parity.result == "different"
    assert parity.max_difference is not None
    assert parity.band is not None
    assert parity.max_difference > parity.band


def test_loss_that_is_no_number_is_different() -> None:
    assert judged([*losses(50)[:40], *[float("nan")] * 20], log(0)).result == "different"


@pytest.mark.parametrize("name", ["torch", "numpy.random"])
def test_workers_that_begin_with_the_same_numbers_are_different(name: str) -> None:
    parity = judged(losses(50), log(0, same=[name]))
    assert parity.result == "different"
    assert "4 workers begin with the same numbers" in parity.reason


def test_workers_that_begin_two_epochs_alike_are_different() -> None:
    once = log(0, epochs=[11], own=("generator",))
    parity = judged(losses(50), RngLog(once.batches, 2 * once.epochs))
    assert parity.result == "different"
    assert "begin two epochs with the same numbers" in parity.reason


def test_epochs_of_an_evaluation_show_nothing_of_the_training() -> None:
    once = log(0, workers=1, epochs=[11])
    other = log(0, workers=2, epochs=[12])
    evaluates = EpochStart(12, "another", 2)
    both = RngLog(once.batches + other.batches, (*once.epochs, evaluates))
    assert judged(losses(50), both).result == "not_checked"


def test_generator_that_no_batch_draws_from_may_be_alike() -> None:
    assert judged(losses(50), log(0, same=["random"])).result == "within_noise"


def test_dataset_that_seeds_a_generator_itself_is_different() -> None:
    runs = [
        RngRun(compared(losses(n)), log(n, workers=0, seeds=["torch"]))
        for n in range(OTHER_RNG_RUNS)
    ]
    parity = judge_other_rng(runs, compared(losses(50)), RngRun(compared(losses(0)), log(0)), SAME)
    assert parity.result == "different"
    assert "seeds torch's generator itself" in parity.reason


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (RngLog(), "was not seen"),
        (log(0, workers=1, epochs=[11]), "one worker in one epoch"),
        (log(0, epochs=[11], own=("worker_init_fn",)), "has a worker_init_fn"),
        (log(0, epochs=[11], own=("generator", "worker_init_fn")), "generator and a worker_init"),
        (
            RngLog(log(0, workers=0).batches, (EpochStart(11, "loader", 2),)),
            "workers draw from was not seen",
        ),
    ],
    ids=["nothing", "one_worker", "worker_init_fn", "both", "no_worker"],
)
def test_too_little_seen_of_workers_is_not_checked(held: RngLog, reason: str) -> None:
    parity = judged(losses(50), held)
    assert (parity.result, parity.parity_class) == ("not_checked", "other_draws")
    assert reason in parity.reason


@pytest.mark.parametrize(
    "held",
    [log(0, workers=0), log(0, workers=1), log(0, epochs=[11]), log(0, own=("worker_init_fn",))],
    ids=["no_workers", "one_worker", "one_epoch", "worker_init_fn"],
)
def test_enough_seen_of_workers_is_judged(held: RngLog) -> None:
    assert judged(losses(50), held).result == "within_noise"


def test_augmentation_that_moves_losses_as_training_does_shows_nothing() -> None:
    parity = judged(losses(50, noise=3.0, moves=0.0), log(0), noise=3.0, moves=0.0)
    assert parity.result == "not_checked"
    assert "they show nothing" in parity.reason
