"""Anybody's module and examples in the training loop of hotloop: `hotloop.fit`."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from hotloop.checkpoint.loader import random_states, set_random_states
from hotloop.core.errors import UsageError, first_line
from hotloop.core.memory_use import memory_refusal
from hotloop.core.module_config import ModuleConfig
from hotloop.core.settings import Settings
from hotloop.finetune.conduct import (
    Evaluated,
    Finetuned,
    Prepared,
    Steps,
    conduct_finetuning,
    with_steps,
)
from hotloop.finetune.microbatches import by_number
from hotloop.finetune.module_examples import divided, number_of
from hotloop.finetune.module_fingerprint import fingerprint
from hotloop.finetune.work import (
    InMemory,
    chosen_in,
    held_out_parts,
    in_microbatches,
    spread,
    steps_in_words,
)
from hotloop.hardware.device import pick_device
from hotloop.optimizations.precision.autocast import autocast
from hotloop.report.numbers import counted
from hotloop.train.batches import Inputs, StepData, to_device
from hotloop.train.interruption import StopNow, StopRequest
from hotloop.train.rendezvous import Rendezvous
from hotloop.train.run import Run
from hotloop.train.stability import TrainingDiverged
from hotloop.train.work import HeldOut

WEIGHTS_FILE = "model.safetensors"
Loss = Callable[[Any, Tensor], Tensor]
Collate = Callable[[list[Any]], Any]


class Learner(nn.Module):
    """`forward` gives the loss of a microbatch summed over its examples, whose number stands behind its tensors."""

    stored_whole = True
    """Checkpoints have its frozen weights and its buffers, too, which are from nowhere else."""

    def __init__(self, model: nn.Module, loss: Loss | None, keys: tuple[str, ...] | None) -> None:
        super().__init__()
        self.model, self._loss, self._keys = model, loss, keys

    def forward(self, *given: Tensor) -> Tensor:
        *inputs, num = given
        if self._keys is not None:
            found = self.model(**dict(zip(self._keys, inputs, strict=True)))
        elif self._loss is None:
            found = self.model(*inputs)
        else:
            found = self._loss(self.model(*inputs[:-1]), inputs[-1])
        if self._keys is not None and self._loss is not None:
            raise UsageError(
                "examples that are dicts are given to the model by name, and it computes its loss itself",
                do="leave `loss` out, or let an example be (input, target)",
            )
        mean = getattr(found, "loss", found)
        if not isinstance(mean, Tensor) or mean.numel() != 1:
            raise UsageError(
                "no single number came out as the loss of a batch",
                where="`loss`" if self._loss is not None else type(self.model).__name__,
                do="give `loss`, which takes the model's output and the target and returns their mean loss",
            )
        return mean.reshape(()).float() * num  # not of its first dimension, which may be another


@dataclass(frozen=True, slots=True)
class ModuleWork(InMemory):
    """Of one process: a permutation of the examples per epoch."""

    config: ModuleConfig
    model: Learner
    train: Any
    held_out: Any
    collate: Collate
    keys: tuple[str, ...] | None
    recent: deque[list[int]]
    """The examples of the newest steps."""
    prefetch: int | None = 0
    """Examples may draw at random: drawn ahead of their step, a checkpoint would have the states behind steps still to come."""

    @property
    def loader(self) -> Mapping[str, Any]:
        return {"kind": "dataset", "num_workers": 0, "order": "shuffled", "layout": "as collated"}

    @property
    def has_held_out(self) -> bool:
        return self.held_out is not None

    def read(self, step: int, *, own: Sequence[int], pinned: bool) -> StepData:
        chosen = chosen_in(step, self.config, self.config.data.seed, len(self.train))
        self.recent.append(chosen)
        parts = by_number(len(chosen), self.config.train.microbatch)
        states = random_states()
        try:
            microbatches = in_microbatches(chosen, parts, partial(self.inputs, self.train), pinned)
        except StopNow:  # what is saved now has not drawn for this step
            set_random_states(states)
            raise
        return StepData(microbatches, len(chosen), None, len(chosen))

    def inputs(self, examples: Any, chosen: Sequence[int]) -> Inputs:
        batch = batch_of(self.collate, examples, chosen)
        return (*tensors_of(batch, self.keys), torch.tensor(len(chosen)))

    def sample(self) -> Inputs:
        return self.inputs(self.train, range(min(4, len(self.train))))

    @torch.no_grad()
    def evaluate(self, run: Run, stop: StopRequest) -> HeldOut | None:
        """The mean loss over the held-out examples."""
        if self.held_out is None:
            return None
        chosen = spread(len(self.held_out), self.config.eval.windows)
        parts = by_number(len(chosen), self.config.train.microbatch)
        total = torch.zeros((), device=run.device)
        states = random_states()
        try:
            for part in held_out_parts(run, self.model, stop, chosen, parts):
                inputs = self.inputs(self.held_out, part)
                with autocast(run.device.type, self.config.train.precision):
                    total += self.model(*to_device(inputs, run.device))
        finally:
            set_random_states(states)  # an evaluation changes no step, be it cut short or not
        return HeldOut(total.item() / len(chosen), len(chosen), {})


def batch_of(collate: Collate, examples: Any, chosen: Sequence[int]) -> Any:
    """Raises `UsageError` for examples that `default_collate` cannot put together."""
    found = [examples[index] for index in chosen]
    try:
        return collate(found)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        if collate is not default_collate or memory_refusal(error) is not None:
            raise
        numbers = [str(number_of(examples, index)) for index in chosen]
        raise UsageError(
            f"these examples do not make a batch: {first_line(error)[:200]}",
            where=f"examples {', '.join(numbers[:8])}{', ...' if len(numbers) > 8 else ''}",
            do="give `collate`, which takes a list of examples and pads them (of transformers: `DataCollatorWithPadding(tokenizer)`)",
        ) from error


def tensors_of(batch: Any, keys: tuple[str, ...] | None) -> Inputs:
    """A collated batch as arguments of `Learner`, but for their number. Raises `UsageError`."""
    if keys is not None and not (isinstance(batch, Mapping) and batch.keys() >= {*keys}):
        there = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        what = f"a batch has {there}, and the first one had {', '.join(keys)}"
        raise UsageError(what, do="give every example the same keys")
    values = [batch[key] for key in keys] if keys is not None else batch
    found = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if not found or not all(isinstance(each, Tensor) for each in found):
        named = [f"{key}: " for key in keys] if keys is not None else [""] * len(found)
        kinds = ", ".join(f"{key}{type(each).__name__}" for key, each in zip(named, found, strict=True))  # fmt: skip
        do = "let the examples be tuples or dicts of tensors and numbers (of `datasets`: `.with_format('torch', columns=[...])`), or give `collate`"
        raise UsageError(f"a batch has to be of tensors, and is of {kinds or 'nothing'}", do=do)
    return found


def fit_module(
    settings: Settings[ModuleConfig],
    directory: Path,
    model: nn.Module,
    data: Any,
    validation: Any,
    loss: Loss | None,
    collate: Collate | None,
    steps: Steps,
) -> Finetuned:
    """Train `model` in place; `directory` keeps the run, and `model.safetensors` its weights. Raises `UsageError`."""
    train, held_out = divided(data, validation, settings.config.data.seed)
    if not any(p.requires_grad for p in model.parameters()):
        raise UsageError("the model has no weights to train", where=type(model).__name__)
    device = pick_device(settings.config.train.device, Rendezvous().ranks)
    collate = collate or default_collate
    try:
        first = batch_of(collate, train, [0])  # which may have other keys than the example
    except KeyError as error:
        raise UsageError(
            f"the first example cannot be drawn by its number: {error!r}",
            where=f"`data`, {type(data).__name__}",
            do="give a list, or a Dataset with __len__ and __getitem__; of a table its rows, `frame.to_dict('records')`",
        ) from error
    keys = tuple(first) if isinstance(first, Mapping) else None
    recent = deque[list[int]](maxlen=4)  # divergence is noticed a step late

    def prepare(config: ModuleConfig) -> Prepared:
        learner = Learner(model, loss, keys)
        work = ModuleWork(config, learner, train, held_out, collate, keys, recent)
        _try(learner, work)
        held = 0 if held_out is None else len(held_out)
        lines = [f"{counted(len(train), 'example')} to train on and {held} held out", steps_in_words(len(train), config)]  # fmt: skip
        kind, why = type(data).__name__, "no `validation` was given"
        found = fingerprint(model, loss, work)
        return Prepared(learner, work, found, kind, None, lines, _keep, why)

    settings = with_steps(settings, len(train), where := f"`data`, {type(data).__name__}")
    try:
        found = conduct_finetuning(settings, device, directory, prepare, steps)
    except TrainingDiverged as error:
        for index in itertools.chain(*recent):
            tensors = tensors_of(batch_of(collate, train, [index]), keys)
            if any(each.is_floating_point() and each.isnan().any() for each in tensors):
                what = f"example {number_of(train, index)} holds a value that is no number (nan), and so the loss is none"
                raise UsageError(
                    what, where=where, do="put a number there, or remove it"
                ) from error
        raise
    if found.model is not None:  # averaged weights, those of the best evaluation
        safetensors.torch.load_model(model, found.model, device=str(device))
    return found


@torch.no_grad()
def _try(learner: Learner, work: ModuleWork) -> None:
    """One forward where it stands, for clear words on what cannot be computed."""
    sample = work.sample()
    device = next(learner.parameters()).device
    was_training = learner.training
    learner.eval()
    try:
        learner(*(each.to(device) for each in sample))
    except (TypeError, RuntimeError, ValueError, IndexError, KeyError) as error:
        if isinstance(error, UsageError) or memory_refusal(error) is not None:
            raise
        shapes = ", ".join(str(tuple(each.shape)) for each in sample[:-1])
        raise UsageError(
            f"the model and its loss cannot be computed for a batch of tensors {shapes}: "
            f"{first_line(error)[:200]}",
            where=type(learner.model).__name__,
            do="an example is (input, ..., target) with `loss`; without it the model gets all of it, and returns its loss",
        ) from error
    finally:
        learner.train(was_training)


def _keep(run: Run, evaluated: Evaluated) -> Finetuned:
    assert isinstance(run.model, Learner)
    path = run.directory / WEIGHTS_FILE
    temporary = path.with_suffix(".part")
    safetensors.torch.save_model(run.model.model, str(temporary))
    os.replace(temporary, path)
    return Finetuned(evaluated.training, None, str(path))
