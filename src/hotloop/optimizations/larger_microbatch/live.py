"""Larger microbatches in transformers' Trainer: its `TrainingArguments` become others where they are made."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

from hotloop.optimizations.hooks import after_first_step
from hotloop.optimizations.live_report import Report
from hotloop.probe.entry import around_call
from hotloop.probe.imports import after_import

FIRST_VERSION = 5
"""Before, an epoch whose last step has fewer microbatches was counted as one step less."""
OTHER_LOOPS = (
    "no TrainingArguments of transformers accumulate gradients: a loop that divides its loss by the number of microbatches "
    "cannot be changed from outside"
)
SETTINGS = ("deepspeed", "auto_find_batch_size", "dataloader_drop_last", "accelerator_config")
"""Those that decide over batches as well."""


def apply(value: Any, report: Report) -> None:
    """Change each `TrainingArguments` before anything is made of them."""
    larger = LargerMicrobatch(int(value), report)

    def hook(name: str, module: Any) -> None:
        kind = getattr(module, name)
        # Each dataclass has an `__init__` of its own: there the script's own call is the caller.
        around_call(kind, "__init__", larger.construct)
        if name == "TrainingArguments":
            around_call(kind, "__post_init__", larger.change)

    after_import(
        {
            "transformers.training_args": partial(hook, "TrainingArguments"),
            "transformers.training_args_seq2seq": partial(hook, "Seq2SeqTrainingArguments"),
        },
        lambda name, error: report.refused(f"{name}: {error}"),
    )
    after_first_step(larger.stepped, report)


class LargerMicrobatch:
    """Multiplies the batch size of `TrainingArguments` by what it divides their accumulation steps by."""

    def __init__(self, value: int, report: Report) -> None:
        self._value, self._report = value, report
        self._constructing = 0
        self._found: int | str | None = None
        """The new batch size, or why there is none, until it is reported."""
        self._reported = False

    def construct(self, original: Any, arguments: Any, *args: Any, **kwargs: Any) -> None:
        """Around `__init__` of a known class."""
        self._constructing += 1
        try:
            original(arguments, *args, **kwargs)
        finally:
            self._constructing -= 1
        self._say()

    def change(self, original: Any, arguments: Any, *args: Any, **kwargs: Any) -> None:
        """Around `__post_init__`, which subclasses have as well."""
        number = arguments.gradient_accumulation_steps
        if isinstance(number, int) and number > self._value:
            self._found = reason_not_changed(arguments, self._value) or _enlarge(
                arguments, self._value
            )
        original(arguments, *args, **kwargs)
        self._say()

    def stepped(self, optimizer: Any) -> None:
        """At the end of the first step."""
        if not self._reported:
            self._report.refused(OTHER_LOOPS)

    def _say(self) -> None:
        if self._constructing or self._found is None:
            return
        found, self._found = self._found, None
        self._reported = True
        if isinstance(found, str):
            self._report.refused(found)
            return
        what = f"per_device_train_batch_size={found}, gradient_accumulation_steps={self._value}"  # fmt: skip
        self._report.applied(what, batch_size=found)


def _enlarge(arguments: Any, value: int) -> int:
    times = arguments.gradient_accumulation_steps // value
    arguments.per_device_train_batch_size *= times
    arguments.gradient_accumulation_steps = value
    return int(arguments.per_device_train_batch_size)


def reason_not_changed(arguments: Any, value: int) -> str | None:
    """Why these `TrainingArguments` stay as they are; `None`: nothing speaks against it."""
    if arguments.gradient_accumulation_steps % value:
        return f"gradient_accumulation_steps={arguments.gradient_accumulation_steps} is no multiple of {value}"
    version = str(sys.modules["transformers"].__version__)
    if int(version.partition(".")[0]) < FIRST_VERSION:
        return f"transformers {version} counts the steps of an epoch otherwise; {FIRST_VERSION} is needed"
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return "several processes train together"
    return next(
        (f"the script sets {name}" for name in SETTINGS if getattr(arguments, name, None)), None
    )
