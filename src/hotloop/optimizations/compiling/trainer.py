"""`torch.compile` for the trainer."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.fx.experimental._config as symbolic_shapes
from torch import nn

from hotloop.models.decoder import Decoder
from hotloop.optimizations.compiling import BLOCKS


def compile_model(model: nn.Module, how: bool | str, *, backend: str = "inductor") -> None:
    """Compile in place, as `train.compile` says: the type and the names of the weights stay what they were.

    A model with `layers_to_compile` has rows of another length in each step, and each of these layers is compiled for all lengths.
    """
    _add_up_embeddings_in_order()
    for advice in (
        "TensorFloat32 tensor cores",
        r"\s*Online softmax is disabled",
    ):  # of a GPU; `train.precision` decides
        warnings.filterwarnings("ignore", advice, UserWarning)
    if (layers := getattr(model, "layers_to_compile", None)) is not None:
        # else two sizes that are equal in the first step by chance are taken for one
        symbolic_shapes.use_duck_shape = False
        for layer in layers():
            layer.compile(dynamic=True, backend=backend)
        return
    if how != BLOCKS:
        model.compile(dynamic=False, backend=backend, mode=None if how is True else how)
        return
    assert isinstance(model, Decoder)
    for block in model.blocks:  # their code is the same: of the second the compiler has it already
        block.compile(dynamic=False, backend=backend)
    model.read_out = torch.compile(model.read_out, dynamic=False, backend=backend)  # type: ignore[method-assign]


def keep_within(budget: float | None) -> None:
    """Of what is compiled from here on in this process, keep that part of the activations; `None`: all that it would keep."""
    import torch._functorch.config as functorch

    functorch.activation_memory_budget = 1.0 if budget is None else budget


def parts_uncompiled(model: nn.Module, how: bool | str) -> AbstractContextManager[object]:
    """Within it the parts that `compile_model` compiled one by one compute as they are written."""
    in_parts = how == BLOCKS or (how and hasattr(model, "layers_to_compile"))
    return torch.compiler.set_stance("force_eager") if in_parts else nullcontext()


def _add_up_embeddings_in_order() -> None:
    """Leave the gradient of an embedding to torch's own kernel, which adds up in one order.

    What the compiler makes of it for several threads adds atomically, in another order in each run: the
    same training would learn other numbers, and not resume to the bit.
    """
    own = torch.ops.aten.embedding_dense_backward.default
    try:
        from torch._inductor.decomposition import decompositions
        from torch._inductor.lowering import lowerings, make_fallback
    except ImportError:  # internals of another torch
        return
    decompositions.pop(own, None)
    if own not in lowerings:
        make_fallback(own, warn=False)  # type: ignore[no-untyped-call]  # else, where CI is set, it is an error that there was one
    # What the compiler has cached with that decomposition would be taken as it is.
    tag, config = "embeddings in order", torch.compiler.config
    if tag not in config.cache_key_tag:
        config.cache_key_tag += tag
