"""What a fix may change in what a command learns, and the arms that its losses are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotloop.core.child import BATCH_RNG, NO_DROPOUT, ROUNDING_NOISE
from hotloop.core.judgement import ParityClass
from hotloop.doctor.fixes import Fix
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.optimizations.catalogue import changes_batch_rng, parity_of_live, reshapes
from hotloop.trial.arm import Arm
from hotloop.trial.measure import is_finished

NOISE: dict[ParityClass, float] = {
    "bitwise": 1e-6,
    "reduction_order": 1e-6,
    "reduced_precision": 2.0**-9,
}
"""Relative size of the noise: a convolution in another memory format rounds as much, products in bf16 do."""
NOISE_RUNS = 2
"""At most: the second is made where the first does not explain what is seen."""
ROUNDED_OTHERWISE, OTHER_RNG, UNDROPPED = "rounded-otherwise", "drawn-otherwise", "without-dropout"


def class_of(runner: TrialRunner, fixes: Sequence[Fix]) -> ParityClass:
    """The most that these may change in what this command learns."""
    if draws_in_batches(runner, fixes) or draws_in_shapes(fixes):
        return "other_draws"
    return same_rng_class_of(runner, fixes)


def draws_in_batches(runner: TrialRunner, fixes: Sequence[Fix]) -> bool:
    """Whether batches draw other random numbers with these."""
    return changes_batch_rng([fix.technique for fix in fixes], runner.census)


def draws_in_shapes(fixes: Sequence[Fix]) -> bool:
    """Whether dropout does, in batches of other shapes."""
    return reshapes([fix.technique for fix in fixes])


def same_rng_class_of(runner: TrialRunner, fixes: Sequence[Fix]) -> ParityClass:
    """The most where batches draw the same random numbers."""
    dtypes = runner.census.matmul_dtypes if runner.census is not None else ()
    return parity_of_live([fix.technique for fix in fixes], dtypes)


def candidate_runs(runner: TrialRunner, fixes: Sequence[Fix]) -> int:
    """Runs for losses that a candidate with these takes by itself."""
    return 2 if draws_in_batches(runner, fixes) else 1


def unfinished_runs(runner: TrialRunner, arm: Arm, fixes: Sequence[Fix]) -> int:
    """Runs for losses that a candidate with these still takes by itself."""
    _, compared = compared_arms(runner, arm, fixes)
    place = runner.losses_place(compared, runner.loss_steps_of(fixes))
    return 0 if is_finished(place) else candidate_runs(runner, fixes)


def rounded_otherwise(baseline: Arm, size: float, number: int) -> Arm:
    """The unchanged command, with noise of this relative size in its numbers."""
    env = {**baseline.env, ROUNDING_NOISE: f"{size:g}:{number}"}
    return replace(baseline, name=ROUNDED_OTHERWISE, env=env)


def compared_arms(runner: TrialRunner, arm: Arm, fixes: Sequence[Fix]) -> tuple[Arm, Arm]:
    """The baseline and `arm` as they are compared: without dropout, where that draws in other shapes."""
    if not draws_in_shapes(fixes):
        return runner.baseline, arm
    undropped = replace(without_dropout(runner.baseline), name=UNDROPPED)
    return undropped, without_dropout(arm)


def without_dropout(arm: Arm) -> Arm:
    """With nothing dropped."""
    return replace(arm, env={**arm.env, NO_DROPOUT: "1"})


def with_fixed_rng(arm: Arm, number: int) -> Arm:
    """With the random numbers of each batch held fixed."""
    return replace(arm, env={**arm.env, BATCH_RNG: str(number)})


def with_other_rng(baseline: Arm, number: int) -> Arm:
    """The unchanged command, with the `number`th of such numbers."""
    return replace(with_fixed_rng(baseline, number), name=OTHER_RNG)


def rounds_products(fixes: Sequence[Fix]) -> bool:
    """Whether one of them makes products of fewer digits, whatever the script had."""
    return parity_of_live([fix.technique for fix in fixes]) == "reduced_precision"
