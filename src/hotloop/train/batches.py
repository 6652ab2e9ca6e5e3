"""What a run reads: the batches of its data settings, and what of them a step takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotloop.core.config import RunConfig
from hotloop.core.progress import Progress, silent
from hotloop.data.loader import Batch, Batches, Loader, Mix, PlainRows, Rows
from hotloop.data.manifest import Split
from hotloop.data.packing import BucketLoader, PackedRows
from hotloop.data.piece_index import bucket_index, bucket_widths, packed_index
from hotloop.data.prepared import Corpora, Prepared, content_of
from hotloop.data.stream import TokenStream
from hotloop.data.streaming import Growing, StreamedLoader

AHEAD_ON_GPU = 2
"""Steps read ahead there: one is being copied while the next is made."""


def training_batches(
    config: RunConfig, corpora: Corpora | Growing, *, progress: Progress = silent
) -> Batches:
    """Raises `UsageError` for data that is too small."""
    data, context = config.data, config.model.context
    if isinstance(corpora, Growing):
        streamed = _streamed(config, corpora, "train")
        progress("waiting for the first text", 0, None, "")
        streamed.wait(max(config.sequences_per_step, data.shuffle_buffer))
        return streamed
    if data.layout == "bucket":
        (only,) = corpora.members
        widths = bucket_widths(context)
        index = bucket_index(only.train, widths, content=content_of(only), progress=progress)
        return BucketLoader(
            only.train,
            index,
            widths,
            microbatch=config.train.microbatch,
            order=data.order,
            seed=data.seed,
        )
    return _in_shares(config, corpora, "train", progress)


def held_out_batches(
    config: RunConfig, corpora: Corpora | Growing, *, progress: Progress = silent
) -> Batches | None:
    """In a fixed order. `None` when some corpus holds out less than one sequence."""
    if isinstance(corpora, Growing):
        return _streamed(config, corpora, "validation")
    if any(len(member.validation) <= config.model.context for member in corpora.members):
        return None
    return _in_shares(config, corpora, "validation", progress)


def _in_shares(config: RunConfig, corpora: Corpora, split: Split, progress: Progress) -> Batches:
    """Each corpus by its weight; what is held out is read from its beginning."""
    data, seed = config.data, config.data.seed if split == "train" else 0
    loaders = []
    for number, member in enumerate(corpora.members):
        stream = member.train if split == "train" else member.validation
        loaders.append(
            Loader(
                _rows(config, member, stream, progress),
                order=data.order if split == "train" else "sequential",
                seed=(seed + number) % 2**63,  # corpora of one size in different orders
            )
        )
    return loaders[0] if len(loaders) == 1 else Mix(loaders, corpora.weights, seed=seed)


def nothing_held_out(config: RunConfig, corpora: Corpora | Growing) -> str:
    """Why there is no evaluation, naming the corpora of a mix that are too small."""
    where = ""
    if isinstance(corpora, Corpora) and len(corpora.members) > 1:
        short = [m for m in corpora.members if len(m.validation) <= config.model.context]
        where = " of " + " and ".join(str(member.path) for member in short)
    return (
        f"nothing is evaluated: the held-out text{where} is shorter than one sequence of "
        f"{config.model.context} tokens"
    )


LEFT_OUT_FRACTION = 0.01
"""Share of a corpus's tokens in no sequence above which a note says so."""


def text_left_out(config: RunConfig, corpora: Corpora | Growing) -> list[str]:
    """A note on each corpus of which `concatenate` leaves out much. None while it still grows."""
    if config.data.layout != "concatenate":
        return []
    if isinstance(corpora, Growing):
        streams = [(corpora.path, corpora.streams["train"])] if corpora.complete else []
    else:
        streams = [(member.path, member.train) for member in corpora.members]
    notes = []
    for path, stream in streams:
        num_tokens = len(stream)
        left_out = max(num_tokens - 1, 0) % config.model.context
        if left_out > LEFT_OUT_FRACTION * num_tokens:
            notes.append(
                f"the last {left_out} of {num_tokens} tokens ({left_out / num_tokens:.1%}) of {path} "
                f"fill no sequence of {config.model.context} and are in no epoch; "
                "a smaller `model.context` or `data.layout: pack` leaves out fewer"
            )
    return notes


def _streamed(config: RunConfig, growing: Growing, split: Split) -> StreamedLoader:
    data, context = config.data, config.model.context
    return StreamedLoader(
        growing,
        split,
        context=context,
        buffer=data.shuffle_buffer if split == "train" else config.eval.windows,
        seed=data.seed,
        shuffled=split == "train" and data.order == "shuffled",
        within_documents=data.masks_documents,
    )


def _rows(config: RunConfig, member: Prepared, stream: TokenStream, progress: Progress) -> Rows:
    """Held-out documents of buckets are packed, with masks."""
    data, context = config.data, config.model.context
    if data.layout == "concatenate":
        return PlainRows(stream, context=context, within_documents=data.masks_documents)
    index = packed_index(stream, context, content=content_of(member), progress=progress)
    masks = data.masks_documents or data.layout == "bucket"
    return PackedRows(stream, index, context=context, with_documents=masks)


Inputs = tuple[Tensor, ...]
"""The arguments of the model: tokens, targets and, with document masks, places; (B, T) int64 each."""


@dataclass(frozen=True, slots=True, eq=False)
class StepData:
    """What one process takes in a step."""

    microbatches: list[Inputs]
    """On the host; pinned for a GPU."""
    num_targets: int
    """What the loss of the whole step is the mean over, over all processes."""
    num_tokens: int | None
    """Tokens of the whole step that are counted as its work, over all processes; None: its samples are."""
    num_samples: int


def read_step(
    config: RunConfig, batches: Batches, position: int, *, own: Sequence[int], pinned: bool
) -> StepData:
    """The microbatches `own` of the step that begins at `position`. Pure; may run in a thread."""
    size, num = config.train.microbatch, config.train.grad_accum_steps
    read = [batches.batch(position + i * size, size) for i in own]
    num_targets = sum(batch.num_targets for batch in read)
    if (
        len(own) < num
    ):  # the others' are known without asking them, which would be a wait in every step
        num_targets = batches.count_targets(position, size * num)
    microbatches = [as_tensors(batch, pinned=pinned) for batch in read]
    return StepData(microbatches, num_targets, num_targets, size * num)


def to_device(inputs: Inputs, device: torch.device) -> Inputs:
    """Copied without blocking from pinned memory."""
    if device.type != "cuda":
        return inputs
    return tuple(tensor.to(device, non_blocking=True) for tensor in inputs)


def as_tensors(batch: Batch, *, pinned: bool) -> Inputs:
    """Pinned memory comes from torch's host allocator, which gives a block out again only when the copy
    from it is done: as many buffers as are needed, and no more."""
    arrays = [batch.tokens, batch.targets]
    if batch.document_starts is not None:
        arrays.append(places_of(batch.document_starts))
    tensors = tuple(torch.from_numpy(array) for array in arrays)
    return tuple(tensor.pin_memory() for tensor in tensors) if pinned else tensors


def places_of(document_starts: np.ndarray) -> np.ndarray:
    """int64 (B, T): how far each token is from the start of its document, or of the row."""
    at = np.arange(document_starts.shape[1], dtype=np.int64)
    begins = np.where(document_starts, at, 0)
    places: np.ndarray = at - np.maximum.accumulate(begins, axis=1)
    return places
