"""Batches of a TensorDataset picked at once, where the loader picks each sample by itself and stacks them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, leaving, live_hook
from hotloop.optimizations.source_edit import SourceEdit, WrappedArgument

NAME = "whole_batches"
DEFINITION = f'''def {NAME}(dataset):
    """A copy of a TensorDataset, or of a Subset of one, whose loader (with `collate_fn=list`) picks the samples of a batch at once."""
    from copy import copy

    picked = copy(dataset)
    picked.__getitems__ = picked.__getitem__
    return picked
'''
"""What the patch writes and the live form runs. A copy: another loader may collate samples of the same dataset."""


def _values_for(census: Census) -> tuple[Any, ...]:
    loader = census.slowest_loader()
    return (True,) if loader is not None and loader.stacks_tensors else ()


def _arguments(value: Any, given: Mapping[str, Any]) -> dict[str, Any] | str:
    torch: Any = sys.modules["torch"]
    data = torch.utils.data
    if given["batch_size"] is None and given["batch_sampler"] is None:
        return "gives whole batches already"
    if given["collate_fn"] not in (None, data.default_collate):
        return "has a collate function of its own"
    sampler = given["batch_sampler"]
    if sampler is not None and type(sampler) is not data.BatchSampler:
        return "has a batch sampler of its own, whose batches may be no lists"
    innermost = given["dataset"]
    while type(innermost) is data.Subset:
        innermost = innermost.dataset
    if type(innermost) is not data.TensorDataset:
        return "is no TensorDataset, nor a Subset of one"
    if not all(_is_plain(torch, each) for each in innermost.tensors):
        return "has tensors that are not dense and contiguous"
    scope: dict[str, Any] = {"torch": torch}
    exec(DEFINITION, scope)  # what the patch writes
    return {"dataset": scope[NAME](given["dataset"]), "collate_fn": list}


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Whether picking rows lays them out as stacking them does."""
    dense = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    return dense and tensor.is_contiguous() and not tensor.requires_grad


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    return WrappedArgument(
        "torch.utils.data",
        ("DataLoader",),
        "dataset",
        0,
        NAME,
        DEFINITION,
        keywords={"collate_fn": "list"},
    )


WHOLE_BATCHES = Optimization(
    name=NAME,
    summary="The samples of a batch picked from a TensorDataset with one index, where they were picked and stacked one by one.",
    parity_class="bitwise",
    settings=(True,),
    values_for=_values_for,
    needs="a TensorDataset whose samples torch's own collate function stacks",
    answers=("HL101", "HL102", "HL103"),
    source_form="DataLoader(whole_batches(dataset), ..., collate_fn=list)",
    source_edit=_source_edit,
    of_loader=True,
    live_form=live_hook("set_arguments", _arguments),
    expect=leaving("data_wait_fraction", 0.05, 0.6),
    conflicts=("item_cache", "dynamic_padding"),
    leaves=(
        "another class of dataset, a collate function of its own, tensors that are not dense and contiguous, and loaders "
        "that give whole batches already"
    ),
    risks=(
        "The loader's dataset is a copy that shares the tensors: what the script puts into the attributes of the one it made "
        "does not reach the loader. A sampler must give plain numbers."
    ),
)
