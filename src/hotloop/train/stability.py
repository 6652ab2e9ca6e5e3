"""What is done when the numbers go wrong, and which steps stand far above the ones before them.

Where an update is to be left out, the device decides (`update.py`). Everything else is looked at here,
a step late, when the values have arrived on their own: looking costs the step nothing. What is decided
depends on the reduced gradients and the loss of the whole step alone, so all ranks decide alike.

    spike      gradient norm > spike_factor * median,  or  loss > spike_loss + median
    median     over the last `window_steps` steps before, those that are no numbers left out

A median and not a mean: the spikes themselves are in the window, and a mean or a standard deviation
would follow them. A level that stays is no spike any more once it fills half of the window. What to do
about spikes: PaLM (Chowdhery et al. 2022, arXiv 2204.02311, section 5.1) went back and passed over the
data; OLMo-core's `SkipStepOptimizer` leaves the update out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from hotloop.core.config import LoopConfig, StabilityConfig
from hotloop.core.errors import ExitCode, HotloopError
from hotloop.core.files import finite

NAMES = ("grad_norm", "loss")
"""What is watched, in the order of the rows below."""


@dataclass(frozen=True, slots=True)
class Spike:
    """Why a step is one."""

    name: str
    value: float
    median: float

    def __str__(self) -> str:
        what = self.name.replace("grad_norm", "gradient norm")
        return f"{what} {self.value:.4g}, where {self.median:.4g} is usual"


class SpikesOnHost:
    """Looks at values that have arrived on the host: costs microseconds, and nothing on the device."""

    def __init__(self, config: StabilityConfig) -> None:
        self._config = config
        self._recent = {name: deque[float](maxlen=config.window_steps) for name in NAMES}

    def look(self, values: dict[str, float]) -> Spike | None:
        """True if this step is a spike; it enters the window after that."""
        found = None
        for name in NAMES:
            if name not in values:
                continue
            value, middle = values[name], self._median(name)
            if middle is not None and math.isfinite(value) and value > self._limit(name, middle):
                found = found or Spike(name, value, middle)
            self._recent[name].append(value)
        return found

    def _median(self, name: str) -> float | None:
        """The lower of two, of those that are numbers; `None` until they are half of the window."""
        known = [value for value in self._recent[name] if math.isfinite(value)]
        return median_low(known) if len(known) >= self._config.window_steps // 2 else None

    def _limit(self, name: str, middle: float) -> float:
        if name == "loss":
            return middle + self._config.spike_loss
        return middle * (self._config.spike_factor or math.inf)

    def state(self) -> list[list[float | None]]:
        """A row per name of `NAMES`, oldest first; JSON-ready."""
        return [finite(list(self._recent[name])) for name in NAMES]

    def restore(self, rows: Sequence[Sequence[float | None]]) -> None:
        for name, row in zip(NAMES, rows, strict=True):
            self._recent[name].clear()
            self._recent[name].extend(math.inf if value is None else value for value in row)


class SpikesOnDevice:
    """Decides where the values are, so that the update can be left out without the host knowing yet."""

    def __init__(self, config: StabilityConfig, device: torch.device) -> None:
        self._needed = config.window_steps // 2
        self._recent = torch.full((len(NAMES), config.window_steps), math.inf, device=device)
        self._at = 0  # on the host, as every step takes one place
        self._factor = torch.tensor([config.spike_factor or math.inf, 1.0], device=device)
        self._above = torch.tensor([0.0, config.spike_loss], device=device)

    def look(self, grad_norm: Tensor, loss: Tensor) -> Tensor:
        """A bool () on the device: whether this step is a spike; it enters the window after that."""
        now = torch.stack(
            [grad_norm.detach().float().reshape(()), loss.detach().float().reshape(())]
        )
        known = self._recent.isfinite().sum(dim=1, keepdim=True)
        # Not nanmedian: on a GPU it reads its index back, which waits for the device.
        place = ((known - 1) // 2).clamp(min=0)
        middle = self._recent.sort(dim=1).values.gather(1, place).squeeze(1)
        above = (now > middle * self._factor + self._above) & now.isfinite()
        found = (above & (known.squeeze(1) >= self._needed)).any()
        self._recent[:, self._at] = now.where(now.isfinite(), math.inf)
        self._at = (self._at + 1) % self._recent.shape[1]
        return found

    def state(self) -> list[list[float | None]]:
        """As `SpikesOnHost.state`. Waits for the device: only for a checkpoint."""
        rows: list[list[float | None]] = finite(self._recent.roll(-self._at, dims=1).tolist())
        return rows

    def restore(self, rows: Sequence[Sequence[float | None]]) -> None:
        size = self._recent.shape[1]
        padded = [
            ([math.inf] * size + [math.inf if value is None else value for value in row])[-size:]
            for row in rows
        ]
        self._recent.copy_(torch.tensor(padded))
        self._at = 0


KEPT = "what was saved before is kept, and the same command continues from there"
START_AGAIN = f"start again with a lower `optimizer.learning_rate` or in fp32; {KEPT}"
SKIP_THEM = f"continue with `stability.nonfinite=skip` to leave such updates out, or {START_AGAIN}"


class TrainingDiverged(HotloopError):
    """The loss, the gradients or the weights are no longer numbers, or too many updates were left out."""

    exit_code = ExitCode.FOUND


class RollBack(Exception):
    """The run is to go back to a checkpoint. Caught in `start.py`, never shown."""

    def __init__(self, step: int, spike: Spike) -> None:
        super().__init__(f"step {step}: {spike}")
        self.step = step
        """The spike's."""
        self.spike = spike


COUNTS = ("num_skipped", "num_spikes", "num_rollbacks", "steps_passed_over", "skipped_in_a_row")
"""What a checkpoint keeps of `Stability`, beside the recent values."""


class Stability:
    """What a run has seen go wrong, and what it does about it. All of it is in the checkpoint."""

    def __init__(self, config: LoopConfig, device: torch.device) -> None:
        self.config, self._save_every = config.stability, config.checkpoint.every_steps
        self.num_skipped = 0
        """Updates left out. Like the spikes, of the steps that led here: what is undone is not counted."""
        self.num_spikes = 0
        self.num_rollbacks = 0
        self.steps_passed_over = 0
        """Steps whose data rollbacks passed over: step s takes the sequences of step s + this."""
        self.on_device = (
            SpikesOnDevice(self.config, device) if self.config.spikes == "skip" else None
        )
        self._on_host = SpikesOnHost(self.config)
        self._looking = self.on_device or self._on_host
        self._scaled = config.train.precision == "fp16"
        self.skipped_in_a_row = 0
        self._just_went_back = False
        self._problem: TrainingDiverged | RollBack | None = None

    def tags(self, step: int, values: dict[str, float]) -> tuple[str, ...]:
        """What the late values say of a step. Called once for each, in order."""
        tags = ["rolled_back"] if self._just_went_back else []
        self._just_went_back = False
        spike = self._on_host.look(values) if self.on_device is None else None
        if spike is not None or values.get("spike"):
            self.num_spikes += 1
            tags.append("spike")
        skipped = bool(values.get("skipped"))
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if skipped:
            self.num_skipped += 1
            tags.append("skipped")
        if self._problem is None:
            self._problem = self._judge(step, values, spike, skipped)
        return tuple(tags)

    def checked(
        self, newest: dict[str, float] | None, before: dict[str, float] | None, *, measuring: bool
    ) -> dict[str, float] | None:
        """The newest known values. Raises `TrainingDiverged`, or `RollBack` for a spike to go back from.

        A process that is measured goes on: what it recorded is for the judge to see.
        """
        if self._problem is not None and not measuring:
            raise self._problem
        return before if newest is None else newest

    def _judge(
        self, step: int, values: dict[str, float], spike: Spike | None, skipped: bool
    ) -> TrainingDiverged | RollBack | None:
        for name in ("loss", "grad_norm"):
            value = values.get(name, 0.0)
            left_out = skipped and self.config.nonfinite == "skip"
            # A gradient that overflows under the scaler of fp16 is no divergence: that update was left out.
            if math.isfinite(value) or left_out or (name == "grad_norm" and self._scaled):
                continue
            what = name.replace("grad_norm", "gradient norm")
            do = SKIP_THEM if self.config.nonfinite == "stop" else START_AGAIN
            return TrainingDiverged(f"the {what} became {value} at step {step}", do=do)
        if values.get("scale", 1.0) < 1.0:
            return TrainingDiverged(
                f"the gradient scale of fp16 fell to {values['scale']:g} at step {step}: gradients "
                "overflow whatever the scale",
                do=f"train in bf16 or fp32, or with a lower `optimizer.learning_rate`; {KEPT}",
            )
        if self.skipped_in_a_row >= self.config.max_skips:
            return TrainingDiverged(
                f"{self.skipped_in_a_row} updates in a row were left out, the last one at step {step}"
                f" (loss {values['loss']:.4g}, gradient norm {values.get('grad_norm', math.nan):.4g})",
                do="look at the data from there on, raise `stability.max_skips`, or lower "
                f"`optimizer.learning_rate`; {KEPT}",
            )
        if spike is None or self.config.spikes != "rollback":
            return None
        if self.num_rollbacks < self.config.max_rollbacks:
            return RollBack(step, spike)
        return TrainingDiverged(
            f"another spike, at step {step}, when `stability.max_rollbacks` is reached: {spike}",
            do="raise `stability.max_rollbacks` or `stability.spike_factor`, or lower "
            f"`optimizer.learning_rate`; {KEPT}",
        )

    def went_back(self, *, from_step: int, to_step: int, before: Stability) -> None:
        """After restoring: the data of `to_step` to `from_step` are passed over."""
        self.num_rollbacks = before.num_rollbacks + 1
        self.steps_passed_over = before.steps_passed_over + from_step + 1 - to_step
        self._just_went_back = True

    def due_before(self, step: int) -> int:
        """The last step up to this one after which a save is due, where a spike at `step` sends the run back to.

        Where a process was stopped says nothing: a run that was not has no checkpoint there.
        """
        assert isinstance(self._save_every, int), "with rollbacks nothing else is accepted"
        return step - step % self._save_every

    def good_until(self, done: int) -> int | None:
        """The step up to which checkpoints stay when `done` are done; `None` where no more than usual are needed.

        What follows the last update that was made may be useless, and what a stop saves between two saves that are due must
        not push out the one before it.
        """
        good = [done - self.skipped_in_a_row] if self.skipped_in_a_row else []
        if self.config.spikes == "rollback" and self.due_before(done) < done:
            good.append(self.due_before(done))
        return max(good, default=None)

    def state(self) -> dict[str, Any]:
        """JSON-ready, for the checkpoint. Call it when every closed step's values have been seen."""
        counts = {name: getattr(self, name) for name in COUNTS}
        return {**counts, "recent": self._looking.state()}

    def restore(self, stored: Mapping[str, Any] | None) -> None:
        """Continue from a checkpoint; `None` is one written before there was such a state.

        Raises `ValueError` or `KeyError` for what `state` never gives.
        """
        if stored is None:
            return
        for name in COUNTS:
            if type(stored[name]) is not int or stored[name] < 0:
                raise ValueError(f"`stability.{name}` must be a number of steps")
            setattr(self, name, stored[name])
        for value in (value for row in stored["recent"] for value in row):
            if value is not None and type(value) not in (int, float):
                raise ValueError("`stability.recent` must be numbers")
        self._looking.restore(stored["recent"])
