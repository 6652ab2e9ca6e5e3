"""Which checkpoint a run continues from, and what would make it another run.

Every choice leads to the same weights and losses: between two checkpoints of a run the steps are repeated
to the last bit. So going further back costs time and nothing else.
"""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path

import torch

from hotloop.checkpoint import state, store
from hotloop.core.config import LoopConfig
from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings
from hotloop.models.decoder import Decoder
from hotloop.models.import_hf import load_hf_weights
from hotloop.probe.recorder import newest_steps
from hotloop.train.averaging import first_update
from hotloop.train.evaluate import read_evaluations
from hotloop.train.group import seed_of
from hotloop.train.run import Run
from hotloop.train.save_times import longest_interval
from hotloop.train.update import learning_rate

Choice = tuple[store.Checkpoint | None, tuple[str, ...]]
"""A checkpoint, or `None` for the start; and what the user should know about it."""


def resume(run: Run, *, from_step: int | None = None, stretch: bool = False) -> tuple[str, ...]:
    """Continue from the newest checkpoint that is good, or from that of `from_step`; returns notes.

    Without any checkpoint, start from the weights of `train.init_from` where it is given. Raises
    `UsageError` where records tell of a checkpoint that is gone, and where `train.steps` was changed in a
    way that the steps already done contradict; `stretch` allows that.
    """
    # The first process decides: the others could see another state of the disk.
    found, notes = run.group.decided(lambda: _choose(run, from_step, stretch))
    if found is not None:
        restore(run, found)
    elif run.config.train.init_from is not None:
        assert isinstance(run.model, Decoder), "others start from weights of their own"
        load_hf_weights(run.model, Path(run.config.train.init_from).expanduser())
    if not run.group.ranks.is_first:
        return notes
    if found is None and from_step is not None:
        store.set_aside(run.checkpoints, newer_than=0)
    if run.uploader is not None:
        run.uploader.remote.set_aside(newer_than=run.first_step)
    return notes + tuple(
        f"removed {name}, which has no manifest: the save of it, or its deletion, was cut short"
        for name in store.remove_uncommitted(run.checkpoints)
    )


def restore(run: Run, found: store.Checkpoint) -> None:
    """Put the run where it was at `found`. Raises `UsageError` for a checkpoint that is not this run's."""
    ranks = run.group.ranks
    if not found.path.is_dir():
        raise UsageError(
            f"rank {ranks.rank} does not see the checkpoint that rank 0 continues from",
            where=str(found.path),
            do="give a run directory (--out) on a disk that all machines share",
        )
    try:
        tensors, extra = store.load(found, state.FILES)
        refuse_other_rules(run.config, found.step, extra.get("rules", 1))
        seen = extra.get("stability")
        updated = found.step > (seen["num_skipped"] if seen is not None else 0)
        state.restore(
            tensors,
            extra,
            model=run.model,
            optimizer=run.optimizer,
            scaler=run.scaler,
            updated=updated,
        )
        if ranks.rank in range(1, extra.get("num_ranks", 1)):
            name = state.random_file(ranks.rank)
            state.restore_random(store.load(found, (name,))[0][name], run.device)
        elif not ranks.is_first:
            torch.manual_seed(seed_of(run.config.train.seed, found.step, ranks.rank))
        if run.average is not None:
            run.average.restore(found)
        run.stability.restore(seen)
    except UsageError as error:
        error.where = error.where or str(found.path)
        raise
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__} {error} in state.json"
        raise store.foreign(found, problem) from error
    run.first_step = run.saver.committed = found.step
    if ranks.is_first:
        store.set_aside(run.checkpoints, newer_than=found.step)


def _choose(run: Run, from_step: int | None, stretch: bool) -> Choice:
    if from_step is None:
        found, problems = store.latest(run.checkpoints)
        if run.uploader is not None:
            local = -1 if found is None else found.step
            found = run.uploader.fetch(run.checkpoints, newer_than=local) or found
    elif run.uploader is not None and from_step not in store.steps(run.checkpoints):
        run.uploader.fetch(run.checkpoints, step=from_step)
    stored = run.directory / "config.yaml"
    before = load_settings(stored, kind=type(run.config)).config if stored.exists() else None
    if from_step is None:
        lost = refuse_lost_checkpoint(run, before)
        found, notes = _newest_good(run, found, problems)
        notes = lost + notes
    else:
        found, notes = _asked_for(run, from_step)
    done = 0 if found is None else found.step
    if before is not None and before.train.steps != run.config.train.steps:
        kept = store.steps(run.checkpoints)
        notes += (refuse_other_course(before, run.config, done, kept=kept, stretch=stretch),)
    return found, notes


def _asked_for(run: Run, step: int) -> Choice:
    newest = store.newest_seen(run.checkpoints)
    later = "; later checkpoints are renamed to `left-...`, not deleted" if newest > step else ""
    notes = (f"continuing from step {step} as asked{later}",)
    if step == 0 and store.latest(run.checkpoints, before=1)[0] is None:
        return None, notes
    return store.of_step(run.checkpoints, step), notes


def _newest_good(run: Run, found: store.Checkpoint | None, problems: tuple[str, ...]) -> Choice:
    """The newest checkpoint that verifies (`found`), or one from before the numbers went wrong."""
    if found is None:
        if problems:
            raise UsageError(
                f"no checkpoint of this run can be read: {'; '.join(problems)}",
                where=str(run.checkpoints),
                do="`--from-step 0` starts over",
            )
        done = recorded_steps(run.steps_file)
        return None, (f"no checkpoint yet: {done} recorded steps are made again",) if done else ()
    wrong = wrong_from(run.steps_file, run.config.stability.max_skips)
    note: tuple[str, ...] = ()
    if wrong is not None and found.step >= wrong:
        earlier, _ = store.latest(run.checkpoints, before=wrong)
        if earlier is not None:
            note = (
                f"loss or gradients are not finite from step {wrong} on: continuing from step "
                f"{earlier.step}, the newest checkpoint from before, and not from step {found.step}",
            )
            found = earlier
    return found, note + tuple(
        f"a newer checkpoint cannot be used, continuing from step {found.step}: {problem}"
        for problem in problems
    )


def wrong_from(steps_file: Path, max_skips: int) -> int | None:
    """The first of the last steps whose loss is no number, or that ended the run by being left out.

    A checkpoint taken right before it holds the weights that may have caused it.
    """
    first, count, lost = None, 0, False
    for record in newest_steps(steps_file):
        loss_is_lost = record.loss is not None and not math.isfinite(record.loss)
        norm = record.grad_norm
        left_out = "skipped" in record.tags and norm is not None and not math.isfinite(norm)
        if not (loss_is_lost or left_out):
            break
        first, count, lost = record.step, count + 1, lost or loss_is_lost
    return first if lost or count >= max_skips else None


def recorded_steps(steps_file: Path) -> int:
    return next((record.step + 1 for record in newest_steps(steps_file)), 0)


def refuse_lost_checkpoint(run: Run, before: LoopConfig | None) -> tuple[str, ...]:
    """Raises `UsageError` when the records tell of a checkpoint later than any that is here.

    Training on would cut the records and make the steps again, perhaps days of them. Returns a note on one
    that is here without its manifest, where there is an earlier one.
    """
    done, seen = recorded_steps(run.steps_file), store.newest_seen(run.checkpoints)
    # A save beside the steps is recorded before it has ended: then the one before the newest had.
    background = before.checkpoint.background if before is not None else False
    num_open = 1 if background else 0
    tagged = (r.step for r in newest_steps(run.steps_file) if "checkpoint" in r.tags)
    newest = list(islice(tagged, num_open + 1))
    if background == "auto" and len(newest) == 1:
        num_open = 0  # a process's first save is waited for
    saved = newest[num_open] if len(newest) > num_open else 0
    note: tuple[str, ...] = ()
    if saved > seen and store.steps(run.checkpoints):
        name = store.set_aside_lost(run.checkpoints, saved)
        if name is not None:
            seen, note = saved, (f"a newer checkpoint cannot be used: {name} lost its manifest",)
    if before is not None and not newest and (run.directory / "census.json").exists():
        saved = before.train.steps if done >= before.train.steps else 0  # saved at its end alone
    if before is not None and before.checkpoint.every_steps:
        evaluated = max((each.step for each in read_evaluations(run)), default=0)
        longest = longest_interval(run, before.checkpoint.every_steps)
        if evaluated > seen + longest * (1 + num_open):
            done, saved = max(done, evaluated), max(saved, evaluated)
    if saved <= seen:
        return note
    there = f"the newest one that is found is of step {seen}" if seen else "none is found"
    raise UsageError(
        f"{done} steps of this run are recorded and its checkpoints are gone: {there}",
        where=str(run.checkpoints),
        do="put them back (links to another disk are followed), or choose another --out; "
        f"`--from-step {seen}` goes on without them and makes the later steps again",
    )


def _way_back(kept: tuple[int, ...], latest: int) -> str:
    """The option that goes back to a checkpoint of step `latest` or before."""
    step = max((each for each in kept if each <= latest), default=0)
    return f"`--from-step {step}`" + ("" if step else ", which starts over")


def refuse_other_course(
    before: LoopConfig, now: LoopConfig, done: int, *, kept: tuple[int, ...], stretch: bool
) -> str:
    """A note on another `train.steps`. Raises `UsageError` where the `done` steps contradict it.

    kept: the steps of the checkpoints that are there to go back to.
    """
    old, new, name = before.train.steps, now.train.steps, now.schedule.name
    key, given = "train.steps", f"`train.steps: {new}`"
    epochs = [getattr(each.train, "epochs", 0) for each in (before, now)]
    if epochs[0] != epochs[1] and old * epochs[1] == new * epochs[0]:  # these are what was set
        key, given = "train.epochs", f"`train.epochs: {epochs[1]}` ({new} steps)"
    if done > new:
        do = f"leave `{key}` as it was, or go back with {_way_back(kept, new)}"
        raise UsageError(f"this run has done {done} steps, more than {given}", do=do)
    first, second = sorted((first_update(before), first_update(now)))
    if now.averaging.name != "none" and first <= done and first != second:
        raise UsageError(
            f"with {given} the mean of the weights would have begun at another step",
            do=f"go back to before it began with {_way_back(kept, first - 1)}, or begin a new run",
        )
    rates = ((s, learning_rate(before, s), learning_rate(now, s)) for s in range(done))
    other = next((step for step, earlier, later in rates if earlier != later), None)
    if other is None:
        return f"{new} steps instead of {old}: the steps already done are the same with both"
    if stretch:
        return (
            f"the `{name}` schedule is stretched from {old} to {new} steps: from step {other} to "
            f"{done} this run took other learning rates than it would take now"
        )
    raise UsageError(
        f"with {given} instead of {old} the `{name}` schedule has another learning rate "
        f"from step {other} on, and {done} steps are done",
        do=f"go back with {_way_back(kept, other)}; or accept the "
        "difference with `--stretch-schedule` (`stretch_schedule=True` of `hotloop.fit`); or export the "
        "model and begin a new run from it (`train.init_from`)",
    )


def refuse_other_rules(config: LoopConfig, done: int, rules: object) -> None:
    """Raises `UsageError` where going on would learn otherwise than the version that saved it."""
    same = config.schedule.name == "constant" and not config.optimizer.weight_decay
    if rules == state.RULES or same or done >= config.train.steps:
        return
    raise UsageError(
        "this checkpoint is of another version of hotloop, whose weight decay (on norms and biases too) "
        "and schedules were others: going on would be neither the one training nor the other",
        do="finish it with that version; or export it (`hotloop export`) and begin a new run from it with "
        "`train.init_from`",
    )
