"""What a config needs of a GPU's memory: its own model and step, traced with tensors that hold no data.

Every storage counts from the operation that makes it until the last tensor on it is gone, in blocks of 512 bytes, as
torch's caching allocator gives them out (c10/core/AllocatorConfig.h: `kMinBlockSize`); what it reserves beyond that
is not in `torch.cuda.max_memory_allocated`. Not seen: workspaces of cuBLAS, the CUDA context, and what a compiler leaves
out: a compiled model saves less than the uncompiled one that is traced. An H100, torch 2.11, says how near it is (docs/MEMORY.md); the memory of a CPU has
another story (`rehearsal.py`).
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hotloop.core.config import RunConfig
from hotloop.core.memory_use import Rehearsed
from hotloop.models.chunked_loss import loss_and_gradients
from hotloop.models.decoder import Decoder
from hotloop.optimizations.precision.autocast import autocast
from hotloop.train.optimizer import build_optimizer
from hotloop.train.run import decoder_shape

BLOCK_BYTES = 512


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages while they live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now_bytes = self.peak_bytes = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is not torch.ops.prim.device.default:
            with self:  # what torch would see as one: the operator of the loss, and within it composite ones
                if function is torch.ops.hotloop.chunked_loss.default:
                    return loss_and_gradients(*args, kind="cuda")
                parts = function.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = function(*args, **kwargs)
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self._see(each.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        self.now_bytes += self._sizes[key]
        weakref.finalize(storage, self._gone, key)
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def _gone(self, key: int) -> None:
        self.now_bytes -= self._sizes.pop(key, 0)


def predict(config: RunConfig, vocabulary: int) -> Rehearsed:
    """Two steps of a resolved config; the second finds the optimizer's state. Takes seconds, and no memory.

    vocabulary: of the tokenizer. A save copies to the host's memory, and an evaluation keeps no activations: neither adds
    to the peak. Raises `UsageError` where the model cannot embed the vocabulary.
    """
    shape = decoder_shape(config, vocabulary)
    if shape.attention in (
        "efficient",
        "cudnn",
    ):  # as flash, they keep no scores; a CPU has them not
        shape = replace(shape, attention="sdpa")
    averages = config.averaging.name != "none"
    left_bytes = 0
    with FakeTensorMode(), _Live() as live:
        model = Decoder(shape)
        weights_bytes = live.now_bytes
        optimizer = build_optimizer(model, config.optimizer, precision=config.train.precision)
        averaged = [torch.zeros_like(p) for p in model.parameters()] if averages else []
        tokens = torch.zeros(config.train.microbatch, config.model.context, dtype=torch.long)
        before = live.now_bytes
        for _ in range(2):
            for _ in range(min(config.train.grad_accum_steps, 2)):
                held = live.now_bytes
                # Fake tensors of a CPU: the same shapes and dtypes as on a GPU, and no GPU is asked for.
                with autocast("cpu", config.train.precision):
                    loss = model(tokens, tokens) / tokens.numel()
                left_bytes = live.now_bytes - held
                loss.backward()
                del loss
            if config.train.clip_norm is not None and config.train.clip != "fused":
                nn.utils.clip_grad_norm_(model.parameters(), config.train.clip_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        optimizer_bytes = live.now_bytes - before
        peak_bytes = live.peak_bytes
    return Rehearsed(
        weights_bytes=weights_bytes,
        gradients_bytes=sum(each.nbytes for each in model.parameters()),
        optimizer_bytes=optimizer_bytes,
        averaged_bytes=sum(each.nbytes for each in averaged),
        activations_bytes=left_bytes,
        logits_bytes=min(4 * tokens.numel() * shape.vocabulary, left_bytes),
        live_bytes=peak_bytes,
        start_bytes=0,
        steps_bytes=peak_bytes,
        whole_bytes=peak_bytes,
    )
