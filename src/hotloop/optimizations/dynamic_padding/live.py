"""Cutting the batches of a running script to their longest sequence."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hotloop.optimizations.dynamic_padding import DEFINITION, NAME, USUAL_MASK
from hotloop.optimizations.hooks import Arguments, set_arguments
from hotloop.optimizations.live_report import Report
from hotloop.probe.attach.sites import caller

LOOKS = 16
"""Batches without any padding that are waited through, where only padding tells which tensor is the mask."""


def apply(value: Any, report: Report) -> None:
    """Wrap the collate function of the loader that trains."""
    scope: dict[str, Any] = {"torch": torch}
    exec(DEFINITION, scope)  # what the patch writes

    def change(value: Any, given: Mapping[str, Any]) -> Arguments | str:
        if given["batch_size"] is None and given["batch_sampler"] is None:
            return "makes its batches itself"
        context = given["multiprocessing_context"] or multiprocessing
        method = context if isinstance(context, str) else context.get_start_method()
        if given["num_workers"] and method != "fork":
            return "has workers that are not forked"
        trimming = Trimming(
            given["collate_fn"], scope[NAME], report, can_toggle=not given["num_workers"]
        )
        return {"collate_fn": trimming}

    set_arguments(change, value, report, says_itself=True)


class Trimming:
    """A collate function that finds the mask in the first batches, and trims from then on."""

    def __init__(
        self, collate_fn: Any, trim: Callable[..., Any], report: Report, *, can_toggle: bool
    ) -> None:
        self._trim, self._report, self._can_toggle = trim, report, can_toggle
        self._plain = trim(collate_fn).collate_fn
        self._trainer = _inside_trainer()
        self._trimming: Callable[[Any], Any] | None = None
        self._looks = LOOKS
        self._is_on = True

    def __call__(self, samples: Any) -> Any:
        if self._trimming is not None and self._is_on:
            return self._trimming(samples)
        batch = self._plain(samples)
        if self._trimming is None and self._looks:
            return self._first(batch)
        return batch

    def _first(self, batch: Any) -> Any:
        """The batch, cut if it shows by what."""
        self._looks -= 1
        found = find_mask(batch)
        if isinstance(found, str):
            self._looks = 0
            self._report.refused(found)
        elif found is not None:
            self._trimming = self._trim(self._plain, found[0])
            self._report.applied(
                f"batches are cut by {found[0]!r}",
                toggle=self._toggle if self._can_toggle else None,
                mask=found[0],
                trainer=self._trainer,
            )
            return self._trim(lambda made: made, found[0])(batch)
        elif not self._looks:
            self._report.refused("no tensor of its batches is seen to be an attention mask")
        return batch

    def _toggle(self, on: bool) -> None:
        self._is_on = on


def find_mask(batch: Any) -> tuple[Any] | str | None:
    """The key or place of the attention mask; why there is none, or `None` where a later batch may show it."""
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        named: dict[Any, Any] = dict(enumerate(batch))
    elif hasattr(batch, "keys"):
        named = {key: batch[key] for key in batch.keys()}  # noqa: SIM118 - no dict in transformers
    else:
        return f"a batch is a {type(batch).__name__}: no mask is known in it"
    tables = {k: v for k, v in named.items() if torch.is_tensor(v) and v.dim() == 2}
    masks = [k for k, v in tables.items() if k == USUAL_MASK or _is_mask(v, tables)]
    if USUAL_MASK in masks:
        masks = [USUAL_MASK]
    if len(masks) > 1:
        return "several tensors of a batch may be the mask"
    if not masks:
        return None
    mask = tables[masks[0]]
    if bool((mask[:, 1:] > mask[:, :-1]).any()):
        return "its batches are not padded on the right"
    length = mask.shape[1]
    if any(length in v.shape[2:] for v in named.values() if torch.is_tensor(v)):
        return "a tensor of a batch has the padded length in another dimension, too"
    return (masks[0],)


def _is_mask(tensor: torch.Tensor, tables: Mapping[Any, torch.Tensor]) -> bool:
    """Rows of ones that end in zeros, where another tensor holds one id alone."""
    if tensor.is_floating_point() or not bool((tensor[:, 0] == 1).all()):
        return False
    padding = tensor == 0
    if not bool(((tensor == 1) | padding).all()) or not bool(padding.any()):
        return False
    same = [v for v in tables.values() if v is not tensor and v.shape == tensor.shape]
    return any(int(v.max()) > 1 and v[padding].min() == v[padding].max() for v in same)


def _inside_trainer() -> bool:
    """Whether transformers' Trainer makes the loader, as it does from its own `data_collator`."""
    frame = caller()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.split(".")[0] not in ("torch", "accelerate", "hotloop"):
            return module == "transformers.trainer"  # not a method that the script overrides
        frame = frame.f_back
    return False
