"""A clock for somebody else's training script: when each step ended, and the loss it went backward from.

torch's global optimizer post-hook marks updates; `StepRule` says which of them end a step, or that `hotloop.step()`
does. A scaler that skips an update calls no hook: its time and losses join the next step.

The loss of a step is the sum of the losses it went backward from: for a script that divides by the
number of microbatches, that is their mean.

On a CPU a step is timed by `perf_counter`; on CUDA by events on the current stream, read after the
last step, because reading one earlier would make the host wait for the device.
"""

from __future__ import annotations

import atexit
import os
import platform
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hotloop.core.census import Census
from hotloop.core.child import (
    STEP_CLOCK,
    STEP_CLOCK_SAMPLES,
    STEP_CLOCK_STOP,
    STEP_CLOCK_WEIGHTS,
)
from hotloop.core.step import StepRecord
from hotloop.probe.batch_queue import BatchQueue
from hotloop.probe.compile_watch import compiler_counts, num_graphs
from hotloop.probe.entry import (
    WatchedMethod,
    after_called_step,
    after_step,
    around_method,
    before_step,
    step_hook,
)
from hotloop.probe.foreign_process import (
    describe_optimizer,
    device_of,
    end_process,
    keep_untraced,
    parameter_dtypes,
    refuse_untested_torch,
    replace_json,
    write_note,
)
from hotloop.probe.machine import (
    finish_background_saves,
    host_peak_bytes,
    num_background_saves,
    tree_bytes,
)
from hotloop.probe.phases import cost_s
from hotloop.probe.scaled_loss import ScaledLoss
from hotloop.probe.step_rule import Ends, RankLock, StepRule

if TYPE_CHECKING:
    from hotloop.probe.weight_digest import WeightDigest


@dataclass(slots=True)
class _Mark:
    """An update, or a call of `hotloop.step()`."""

    at: float | torch.cuda.Event
    by: weakref.ref[torch.optim.Optimizer] | None
    """`None`: by the script's call."""
    losses: list[float | torch.Tensor]
    """Since the mark before."""
    graphs: int
    """Compiled so far."""
    taken: int
    """Batches taken from loader workers in all."""
    ready: int | None
    to_come: bool | None
    """As `BatchQueue.look` says."""
    samples: int
    """Taken from all loaders so far, where they are counted."""
    ends: Ends


class StepClock:
    """Collects marks and losses; writes `steps-<rank>.jsonl`, `census-<rank>.json`, `clock-<rank>.json`.

    stop_after: end the process once this many steps are recorded; `None` lets it run to its end.
    weights: for `weights-<rank>.json`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        stop_after: int | None,
        weights: WeightDigest | None = None,
    ) -> None:
        self._directory = directory
        self._stop_after = stop_after
        self._rank = os.environ.get("RANK", "0")
        self._rule = StepRule()
        self._lock = RankLock(directory, self._rank)
        self._claimed = False
        self._described: str | None = None
        self._dtypes: tuple[str, ...] = ()
        self._device = torch.device("cpu")
        self._started = time.perf_counter()
        self._marks: list[_Mark] = []
        self._losses: list[float | torch.Tensor] = []
        """Since the last mark."""
        self._other_updates = 0
        self.queue = BatchQueue()
        self.scaled = ScaledLoss()
        self._active = True
        self._weights = weights

    def steps(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to update its parameters."""
        if self._active and self._weights is not None:
            self._weights.before(optimizer)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has updated its parameters."""
        if not self._is_clocked():
            return
        if self._weights is not None:
            self._weights.after(optimizer)
        if self._described is None:
            self._device = device_of(optimizer)
            # Now: it may be gone when the census is written.
            self._described = describe_optimizer(optimizer)
            self._dtypes = parameter_dtypes(optimizer)
        ends = self._rule.updated(optimizer)
        if ends is Ends.NOTHING:
            self._other_updates += 1
            if self._rule.is_settled or self._rule.is_explicit:
                return
        self._mark(ends, weakref.ref(optimizer))

    def called(self) -> None:
        """The script has called `hotloop.step()`."""
        if not self._is_clocked():
            return
        if self._described is None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._device = torch.device("cuda")
        self._mark(self._rule.called(), None)

    def _mark(self, ends: Ends, by: weakref.ref[torch.optim.Optimizer] | None) -> None:
        if self._rule.steps == self._stop_after:
            finish_background_saves()
        self.queue.learned()
        taken, ready, to_come = self.queue.look()
        at = self._event() if self._device.type == "cuda" else time.perf_counter()
        samples = self.queue.samples
        self._marks.append(
            _Mark(at, by, self._losses, num_graphs(), taken, ready, to_come, samples, ends)
        )
        self._losses = []
        if ends is Ends.NOTHING:
            return
        if ends is Ends.STEP_OF_ANOTHER:
            for mark in self._marks:
                mark.ends = Ends.STEP if mark.by is by else Ends.NOTHING
        if self._rule.steps == self._stop_after:
            self.finish(stopped=True)
            end_process()

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        """Follows each optimizer's step; a failure of ours never reaches the script."""
        self.guarded(self.stepped, optimizer)

    def backward(self, original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Stands around `Tensor.backward`."""
        result = original(tensor, *args, **kwargs)
        self.guarded(self.went_backward, tensor)
        return result

    def went_backward(self, loss: torch.Tensor) -> None:
        """A backward pass from `loss` has been issued."""
        self.queue.learned()
        if not self._active or loss.numel() != 1:
            return
        loss = self.scaled.unscaled(loss)
        if loss.is_cpu:
            self._losses.append(loss.item())  # half of what float(loss.detach()) takes
        elif loss.device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            # Kept on the device: .item() would stall the queue here. A copy, because a script may
            # reduce its loss over ranks in place before logging it.
            self._losses.append(loss.detach().clone())

    def finish(self, *, stopped: bool = False) -> None:
        """Write what was seen; does nothing in a process that made no step, or the second time."""
        if not self._active or not self._rule.steps:
            return
        self._active = False
        lines = "".join(record.to_json() + "\n" for record in self._records())
        (self._directory / f"steps-{self._rank}.jsonl").write_text(lines, encoding="utf-8")
        replace_json(self._directory / f"census-{self._rank}.json", self._census().to_mapping())
        if self._weights is not None and (updates := self._weights.updates()) is not None:
            replace_json(self._directory / f"weights-{self._rank}.json", asdict(updates))
        # Last: whoever finds this file finds the others whole.
        seen: dict[str, object] = {
            "stopped": stopped,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": None,
        }
        if self._device.type == "cuda":
            seen["cuda"] = torch.version.cuda
            seen["device"] = torch.cuda.get_device_name(self._device)
            seen["num_devices"] = torch.cuda.device_count()
        replace_json(self._directory / f"clock-{self._rank}.json", seen)

    def guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do it; the script must go on whatever happens in here, without the clock if need be."""
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001
            self._active = False
            write_note(self._directory, f"the step clock failed: {type(error).__name__}: {error}")

    def forked(self) -> None:
        """In a child of fork: its steps, if it makes any, are not this process's."""
        self._active = False

    def _is_clocked(self) -> bool:
        """One process per rank carries the clock: the first that makes a step."""
        if self._active and not self._claimed:
            self._active = self._claimed = self._lock.acquire(proven=True)
        return self._active

    def _event(self) -> float | torch.cuda.Event:
        if torch.cuda.is_current_stream_capturing():
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _records(self) -> list[StepRecord]:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.set_sync_debug_mode("default")  # the script is over: losses may be read
        records: list[StepRecord] = []
        losses: list[float] = []
        start: float | torch.cuda.Event = self._started
        reads = graphs_before = taken_before = samples_before = 0
        for mark in self._marks:
            losses += [float(loss) for loss in mark.losses]
            reads += 1
            if mark.ends is Ends.NOTHING:
                continue
            tags = ["compile"] if mark.graphs > graphs_before else []
            tags += ["resumed"] if mark.ends is Ends.LONG_STEP else []
            records.append(
                StepRecord(
                    step=len(records),
                    wall_s=self._seconds(start, mark.at),
                    samples=mark.samples - samples_before or None,
                    loss=sum(losses) if losses else None,
                    clock_reads=reads + len(losses),
                    tags=tuple(tags),
                    batches_taken=mark.taken - taken_before if mark.taken else None,
                    batches_ready=mark.ready,
                    batches_to_come=mark.to_come,
                )
            )
            start, graphs_before, taken_before = mark.at, mark.graphs, mark.taken
            losses, reads, samples_before = [], 0, mark.samples
        return records

    def _seconds(self, before: float | torch.cuda.Event, after: float | torch.cuda.Event) -> float:
        if isinstance(before, float) and isinstance(after, float):
            return after - before
        if isinstance(before, float) or isinstance(after, float):
            return 0.0  # the first step on CUDA: it began before the device had a clock
        return float(before.elapsed_time(after)) / 1000.0

    def _census(self) -> Census:
        notes = ["step 0 is measured from the import of torch"]
        if self._device.type == "cuda":
            notes = ["step 0 has no measured time: the device clock starts with its end"]
        if self._other_updates:
            notes.append(
                f"other optimizers updated {self._other_updates} times; "
                "a step ends with the one that steps most rarely"
            )
        compiled, graphs, num_breaks = compiler_counts()
        return Census(
            device=str(self._device),
            num_threads=torch.get_num_threads(),
            parameter_dtypes=self._dtypes,
            optimizer=self._described,
            microbatches=self._microbatches(),
            compiled=compiled,
            num_graphs=graphs,
            num_graph_breaks=num_breaks,
            host_peak_bytes=host_peak_bytes(),
            tree_bytes=tree_bytes(),
            num_background_saves=num_background_saves(),
            clock_read_s=self._measured_cost(),
            notes=tuple(notes),
        )

    def _microbatches(self) -> float | None:
        """Passes backward per step; `None` where no loss of one was seen."""
        losses = sum(len(mark.losses) for mark in self._marks)
        steps = sum(mark.ends is not Ends.NOTHING for mark in self._marks)
        return losses / steps if losses and steps else None

    def _measured_cost(self, repeats: int = 200) -> float:
        """Seconds of CPU that a mark or a kept loss takes, in the mixture of this run; median of 5 blocks."""
        num_losses = sum(len(mark.losses) for mark in self._marks) / len(self._marks)
        probe = StepClock(self._directory, stop_after=None)
        holder = torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=0.0)
        probe._claimed, probe._described = True, ""
        probe._device = self._device
        loss = torch.zeros((), device=self._device)
        descriptor = WatchedMethod(lambda tensor: None, probe.backward)
        mark = step_hook(probe.updated)
        mark_s = cost_s(lambda: mark(holder, (), {}), repeats)
        loss_s = cost_s(lambda: descriptor.__get__(loss, torch.Tensor)(), repeats)
        return (mark_s + num_losses * loss_s) / (1 + num_losses)


def install(directory: Path, *, stop_after: int | None = None, weights: bool = False) -> StepClock:
    """Hook this process. Raises `TorchTooOld` for a torch that was not tested."""
    refuse_untested_torch()
    keep_untraced(StepClock.guarded, StepClock.went_backward)
    digest = None
    if weights:
        from hotloop.probe.weight_digest import WeightDigest

        digest = WeightDigest()
    clock = StepClock(directory, stop_after=stop_after, weights=digest)
    clock.queue.install()
    clock.scaled.install()
    if os.environ.get(STEP_CLOCK_SAMPLES):
        clock.queue.count_samples()
    if weights:
        before_step(lambda optimizer: clock.guarded(clock.steps, optimizer))
    after_step(clock.updated)
    after_called_step(lambda: clock.guarded(clock.called))
    around_method(torch.Tensor, "backward", clock.backward)
    os.register_at_fork(after_in_child=clock.forked)
    atexit.register(clock.guarded, clock.finish)
    return clock


def install_from_environment() -> StepClock | None:
    """`install` with what the trial asked for; `None` in a process that should not be clocked."""
    directory = os.environ.get(STEP_CLOCK)
    if not directory:
        return None
    stop = os.environ.get(STEP_CLOCK_STOP)
    return install(
        Path(directory),
        stop_after=int(stop) if stop else None,
        weights=bool(os.environ.get(STEP_CLOCK_WEIGHTS)),
    )
