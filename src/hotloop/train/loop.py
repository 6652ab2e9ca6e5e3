"""The training loop. Read it from top to bottom: what a step does, and where its time is booked.

One step is one optimizer update: `grad_accum_steps` microbatches, each a forward and a backward, whose
gradients are those of the mean loss over all targets of the step. So one microbatch of N and N of one
give the same update, and so do several processes that share the microbatches (`group.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from hotloop.checkpoint import state, store
from hotloop.checkpoint.entries import held_out_losses
from hotloop.core.child import GIVEN
from hotloop.core.errors import Interrupted
from hotloop.core.files import write_json
from hotloop.core.step import StepRecord
from hotloop.data.loader import Prefetch
from hotloop.optimizations.precision.autocast import autocast
from hotloop.probe.compile_watch import num_graphs
from hotloop.probe.phases import PhaseClock
from hotloop.probe.recorder import StepBook, keep_steps_before
from hotloop.train.batches import AHEAD_ON_GPU, StepData, to_device
from hotloop.train.evaluate import Evaluation, evaluate, is_evaluated, keep_evaluations_until
from hotloop.train.interruption import StopNow, StopRequest, last_save
from hotloop.train.observed import completed, observe
from hotloop.train.run import Run
from hotloop.train.stability import TrainingDiverged
from hotloop.train.update import clears_late, learning_rate, update
from hotloop.train.work import EvaluationCut


def train(
    run: Run,
    *,
    stop: StopRequest,
    stop_after: int | None,
    observers: tuple[Callable[[StepRecord], None], ...],
    notes: tuple[str, ...],
) -> tuple[float | None, Evaluation | None]:
    """Train from `run.first_step` to the end, or only up to `stop_after` steps in all.

    Returns the last loss and the last evaluation. Ends earlier where `run.enough` says so. With `stop_after` the process measures: it neither evaluates nor saves, and ends there.
    Raises `Interrupted` after Ctrl-C, once everything needed to continue is on the disk, `TrainingDiverged` when the numbers are beyond help, and `RollBack` for `start.py`.
    """
    config, group, device = run.config, run.group, run.device
    last_step = config.train.steps if stop_after is None else min(stop_after, config.train.steps)
    measuring = stop_after is not None
    keep_steps_before(run.steps_file, run.first_step)
    if group.ranks.is_first:
        keep_evaluations_until(run, run.first_step)
    timed = run.clock = PhaseClock()
    group.book_waits(timed)
    census, graphs = observe(run, notes), num_graphs()
    known: dict[str, float] | None = None
    evaluation: Evaluation | None = None
    run.model.train()
    stop.fresh = True
    with (
        step_data(run, last_step) as ahead,
        StepBook(run.steps_file, timed, device, run.stability.tags, observers) as book,
        run.watchdog.watching(timed),
    ):
        if run.first_step:
            book.tag("resumed")
        if run.sessions is not None:
            run.sessions.training(timed)
        timed.start_step()
        if not measuring and not is_evaluated(run):
            try:
                with timed.phase("eval"):
                    evaluation = evaluate(run, run.first_step, stop)
            except EvaluationCut:
                raise stopped(run, stop, run.first_step, book) from None
            if run.enough(run.first_step):  # a run that was not cut short ended there
                last_step = run.first_step
        for step in range(run.first_step, last_step):
            run.watchdog.passed(step)
            with timed.phase("data_wait"):
                data = next(ahead) if group.ranks.num_ranks > 1 else stop.waited(ahead.__next__)
            if data is None:
                raise StopNow if stop.fresh else stopped(run, stop, step, book)
            if run.samples is not None:
                with timed.phase("logging"):
                    run.samples.add(step, data)
            for told in GIVEN:
                told(data.num_samples)
            whole = gradients(run, data, timed, stop)
            stop.fresh = False  # from here on there is something to save
            with timed.phase("optimizer"):
                rate = learning_rate(config, step)
                late = update(run, rate, whole["loss"])
                if run.average is not None:
                    run.average.update(step + 1)
            with timed.phase("logging"):
                book.note({**whole, **late})
                graphs = tag_compiles(book, graphs)
            with timed.phase("sync"):
                book.wait()  # for the step before: this one's numbers would leave the device idle
            with timed.phase("logging"):
                known = run.stability.checked(book.write_closed(), known, measuring=measuring)

            book.close(
                step=step, tokens=data.num_tokens, samples=data.num_samples, learning_rate=rate
            )

            # From here on time belongs to the next step (the last evaluation and save to none).
            stopping = group.stops(stop, known)
            run.saver.check()
            if run.uploader is not None:
                run.uploader.check()
            if measuring:
                if stopping:
                    raise KeyboardInterrupt
                continue
            known, evaluation, ended = between_steps(
                run, stop, book, known, evaluation, last_step, done=step + 1, stopping=stopping
            )
            if ended:
                break
        known = run.stability.checked(book.write_closed(), known, measuring=measuring)

    if group.ranks.is_first:
        write_json(run.directory / "census.json", completed(census, run))
    return known["loss"] if known else None, evaluation


def between_steps(
    run: Run,
    stop: StopRequest,
    book: StepBook,
    known: dict[str, float] | None,
    evaluation: Evaluation | None,
    last_step: int,
    *,
    done: int,
    stopping: bool,
) -> tuple[dict[str, float] | None, Evaluation | None, bool]:
    """Evaluate, save and stop as is due after `done` steps. Returns what is newest, and whether that was the end.

    Records reach the disk before the checkpoint that lets a later process start behind them.
    """
    timed, every, finished = run.clock, run.config.eval.every_steps, done == last_step
    evaluates = every > 0 and (finished or done % every == 0)
    saves = run.save_times.due(done, now=finished)
    if evaluates or saves:
        with timed.phase("sync"):
            book.wait(for_last=True)
        with timed.phase("logging"):
            known = run.stability.checked(book.write_closed(), known, measuring=False)
    if evaluates and not stopping:
        book.tag("eval")
        try:
            with timed.phase("eval"):
                evaluation = evaluate(run, done, stop)
        except EvaluationCut:
            stopping = True
    if evaluates and not stopping and run.enough(done):
        finished = saves = True
    if stopping and (evaluates or not finished):
        with timed.phase("checkpoint"):
            raise stopped(run, stop, done, book)
    if saves:
        book.tag("checkpoint")
        with timed.phase("checkpoint"):
            book.flush()
            save(run, done, beside=not finished and run.save_mode.beside())
            run.save_times.saved(done)
    if run.save_times.held(done):
        with timed.phase("checkpoint"):
            run.saver.finish()
    return known, evaluation, finished


def gradients(run: Run, data: StepData, timed: PhaseClock, stop: StopRequest) -> dict[str, Tensor]:
    """Forward and backward of each microbatch, which leave the step's gradients; returns its totals over all ranks."""
    group, device = run.group, run.device
    with timed.phase("host_to_device"):
        on_device = [to_device(inputs, device) for inputs in data.microbatches]
    step_loss: Tensor | None = None
    for inputs in on_device:
        last = inputs is on_device[-1]
        with group.microbatch(last=last):
            with timed.phase("forward"), autocast(device.type, run.config.train.precision):
                share = run.replica(*inputs) / data.num_targets
            own = share.detach()
            step_loss = own if step_loss is None else step_loss + own
            if step_loss is own and clears_late(run):
                with timed.phase("optimizer"):
                    run.clear_gradients()
            if last:  # it travels between processes while the backward computes
                totals = group.totals(step_loss, stop)
            with timed.phase("backward"), group.backward():
                (run.scaler.scale(share) if run.scaler else share).backward()
    return totals()


def step_data(run: Run, last_step: int) -> Prefetch[StepData]:
    """The data of the steps from `run.first_step` on, read ahead as `data.prefetch` says."""
    own = run.group.ranks.share(run.config.train.grad_accum_steps)
    on_gpu = run.device.type == "cuda"
    passed_over = run.stability.steps_passed_over

    def read(step: int) -> StepData:
        return run.work.read(step + passed_over, own=own, pinned=on_gpu)

    depth = run.work.prefetch
    if depth is None:
        depth = AHEAD_ON_GPU if on_gpu else 0
    return Prefetch(map(read, range(run.first_step, last_step)), depth=depth)


def stopped(run: Run, stop: StopRequest, done: int, book: StepBook) -> Interrupted:
    """The end of this process after `done` steps, which are recorded, and saved if that fits."""
    book.wait(for_last=True)
    run.stability.checked(book.write_closed(), None, measuring=False)
    book.flush()
    return last_save(run, stop, done, save)


def save(run: Run, step: int, *, beside: bool = False) -> None:
    """Save what the next step starts from; with `beside` it is written while the next ones train.

    Raises `TrainingDiverged` for weights that are no numbers (such a checkpoint helps nobody), and
    `EnvironmentFailed` for a disk that refuses this save or the one before.
    """
    run.saver.finish()
    began = time.monotonic()
    for name, parameter in run.model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise TrainingDiverged(
                f"weight `{name}` is no longer finite after step {step}; nothing was saved",
                do="lower `optimizer.learning_rate`, or train in fp32; what was saved before is kept",
            )
    group = run.group
    group.refuse_drift(run.model)
    random_states = group.gathered(state.capture_random(run.device))
    if group.ranks.is_first:
        tensors, extra = state.capture(run.model, run.optimizer, run.scaler, into=run.snapshot)
        run.snapshot = dict(tensors) if beside else {}
        tensors |= {
            state.random_file(rank): states for rank, states in enumerate(random_states) if rank
        }
        extra["num_ranks"] = group.ranks.num_ranks
        extra["stability"] = run.stability.state()
        if run.average is not None:
            tensors |= run.average.files()
        losses = held_out_losses(run.evals_file, run.metric)
        good_until = run.stability.good_until(step)

        def keep() -> None:
            saved = store.save(
                run.checkpoints,
                step,
                tensors=tensors,
                state=extra,
                keep=run.config.checkpoint,
                losses=losses,
                good_until=good_until,
            )
            if run.uploader is not None:
                run.uploader.take(saved.path, losses, good_until)

        commit = run.saver.timed(keep, step, began)
        if beside:
            run.saver.begin(commit)
        else:
            commit()
    group.level()  # nobody ends before it is on the disk, or goes on before it is there or on its way


def tag_compiles(book: StepBook, before: int) -> int:
    """Tag the running step when something was compiled in it."""
    if (now := num_graphs()) != before:
        book.tag("compile")
    return now
