"""Everything that decides what a run does next, as tensors and JSON."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from hotloop.checkpoint.nested import NATIVE, copied
from hotloop.core.errors import UsageError

FILES = ("model", "optimizer", "random")
"""Names of the tensor files of a training checkpoint."""

RULES = 2
"""What the settings mean for training; in every checkpoint. 1 had weight decay on norms and biases, and
schedules that reached their last rate one step after the end."""


def random_file(rank: int) -> str:
    """Name of the file with the random states of one of several processes."""
    return f"random-{rank}" if rank else "random"


def trained_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """By name. What is not trained (beside an adapter) is read from where the run started."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def kept_buffers(model: nn.Module) -> dict[str, Tensor]:
    """By name: what training changes beside the weights, as the mean and the variance of batch norm."""
    return {
        name: buffer
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(path, recurse=False)
        if name.rpartition(".")[2] not in module._non_persistent_buffers_set
    }


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint has of a model, by name. Of one with `stored_whole` that is what is not trained, too, in the types
    that every safetensors has: it may be from nowhere else."""
    trained: dict[str, Tensor] = {**trained_weights(model)}
    if not getattr(model, "stored_whole", False):
        return trained
    rest = {**dict(model.named_parameters()), **kept_buffers(model)}
    return {n: t for n, t in rest.items() if n in trained or t.dtype in NATIVE}


def capture(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
    *,
    into: Mapping[str, dict[str, Tensor]] = MappingProxyType({}),
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """`stored_tensors`, optimizer, gradient scaler and random states: copies on the CPU, which later steps leave alone.

    into: an earlier capture that nobody needs any more; its memory is used again.
    """
    import numpy as np  # here, since who saves a loop of their own may have none

    names = {id(p): name for name, p in model.named_parameters()}
    optimizer_tensors: dict[str, Tensor] = {}
    for parameter, slots in optimizer.state.items():
        for slot, value in slots.items():
            optimizer_tensors[f"{names[id(parameter)]}/{slot}"] = torch.as_tensor(value).detach()
    random_tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index, generator in enumerate(torch.cuda.get_rng_state_all()):
            random_tensors[f"cuda{index}"] = generator
    version, integers, gauss = random.getstate()
    of_numpy = np.random.get_state(legacy=False)
    words, gauss_of_numpy = of_numpy["state"], (of_numpy["has_gauss"], of_numpy["gauss"])
    tensors = {
        # copies: tied weights share memory, which safetensors refuses to write twice
        "model": copied(
            {n: t.detach() for n, t in stored_tensors(model).items()}, into.get("model", {})
        ),
        "optimizer": copied(optimizer_tensors, into.get("optimizer", {})),
        "random": random_tensors,
    }
    state = {
        "rules": RULES,
        "python_random": [version, list(integers), gauss],
        "numpy_random": [words["key"].tolist(), words["pos"], *gauss_of_numpy],
        "scaler": scaler.state_dict() if scaler is not None else None,
        "cuda_device": next(model.parameters()).device.index,
    }
    return tensors, state


def restore(
    tensors: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
    updated: bool,
) -> None:
    """The inverse of `capture`, in place. `updated`: at least one update was made until then.

    Every name, shape and type is compared with the model's before anything is touched: the fused kernels
    of torch trust them, and would write past the end of a tensor that is too small. Raises `UsageError`.
    """
    refuse_unlike("weight", tensors["model"], stored_tensors(model))
    stored = tensors["optimizer"]
    if updated or stored:
        expected = _slots_of(model, optimizer)
        if stored and getattr(model, "stored_whole", False):
            # Anybody's module may have weights that never get a gradient: an optimizer makes no slot for them.
            met = {key.rpartition("/")[0] for key in stored}
            expected = {k: like for k, like in expected.items() if k.rpartition("/")[0] in met}
        refuse_unlike("optimizer state", stored, expected)
    refuse_unlike("random state", tensors["random"], _random_states(tensors["random"]))
    try:
        device = next(model.parameters()).device
        _restore_the_rest(tensors["random"], state, scaler, device)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UsageError(f"damaged state.json or random states: {error}", do=_REMOVE_IT) from error
    restore_weights(tensors["model"], model)
    groups = optimizer.state_dict()["param_groups"]
    index_of = {
        id(parameter): index
        for group, saved in zip(optimizer.param_groups, groups, strict=True)
        for parameter, index in zip(group["params"], saved["params"], strict=True)
    }
    by_name = {name: index_of[id(p)] for name, p in trained_weights(model).items()}
    optimizer_state: dict[int, dict[str, Tensor]] = {}
    for key, value in stored.items():
        name, slot = key.rsplit("/", 1)
        optimizer_state.setdefault(by_name[name], {})[slot] = value
    optimizer.load_state_dict({"state": optimizer_state, "param_groups": groups})


_REMOVE_IT = "remove this checkpoint, to continue from the one before"


def _restore_the_rest(
    states: dict[str, Tensor],
    state: dict[str, Any],
    scaler: torch.amp.GradScaler | None,
    device: torch.device,
) -> None:
    import numpy as np

    if scaler is not None and state["scaler"] is not None:
        scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if f"cuda{index}" in states:
                torch.cuda.set_rng_state(states[f"cuda{index}"], index)
        drawn_by = f"cuda{state.get('cuda_device')}"  # in older checkpoints none
        if device.type == "cuda" and drawn_by in states:
            torch.cuda.set_rng_state(states[drawn_by], device)
    if "numpy_random" in state:  # older checkpoints have none
        key, position, has_gauss, gauss = state["numpy_random"]
        if not 0 <= position <= len(key) == 624:  # it would read behind its end
            raise ValueError("numpy_random")
        np.random.set_state(("MT19937", key, position, has_gauss, gauss))
    version, integers, gauss = state["python_random"]
    random.setstate((version, tuple(integers), gauss))


def refuse_unlike(kind: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raises `UsageError` for the first tensor that is missing, too much, or of another shape or type."""
    for name in sorted(expected.keys() ^ found.keys()):
        place = "the checkpoint" if name in expected else "the model"
        raise UsageError(f"{kind} `{name}` is missing in {place}", do=_ITS_CONFIG)
    for name, like in expected.items():
        for here, there in (
            (tuple(found[name].shape), tuple(like.shape)),
            (found[name].dtype, like.dtype),
        ):
            if here != there:
                raise UsageError(
                    f"{kind} `{name}` is {here} in the checkpoint and {there} in the model",
                    do=_ITS_CONFIG,
                )


_ITS_CONFIG = (
    "use the config of that run, or remove this checkpoint to continue from the one before"
)


def _slots_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What is like that which AdamW, SGD and Muon keep for each weight once it was updated."""
    names = {id(p): name for name, p in model.named_parameters()}
    expected: dict[str, Tensor] = {}
    for group in optimizer.param_groups:
        if "betas" in group:
            slots: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
        elif isinstance(optimizer, torch.optim.SGD):
            slots = ("momentum_buffer",) if group["momentum"] else ()
        else:
            slots = ("momentum",)
        for p in group["params"]:
            expected |= {f"{names[id(p)]}/{slot}": p for slot in slots}
            if "betas" in group:
                expected[f"{names[id(p)]}/step"] = torch.zeros(())
    return expected


def _random_states(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Torch's own says how large; a GPU's may be there or not."""
    gpus = {name for name in found if name.startswith("cuda") and name[4:].isdecimal()}
    return {"torch": torch.get_rng_state()} | {name: found[name].byte() for name in gpus}


def capture_random(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random generators of one of several processes, uint8 each."""
    states = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["device"] = torch.cuda.get_rng_state(device)
    return states


def restore_random(states: dict[str, Tensor], device: torch.device) -> None:
    """The inverse of `capture_random`. Raises `UsageError` for what is no such state."""
    try:
        torch.set_rng_state(states["torch"])
        if device.type == "cuda" and "device" in states:
            torch.cuda.set_rng_state(states["device"], device)
    except (KeyError, TypeError, RuntimeError) as error:
        raise UsageError(f"damaged random state: {error}", do=_REMOVE_IT) from error


def restore_weights(weights: dict[str, Tensor], model: nn.Module) -> None:
    """Copy weights into the model. Raises `UsageError` naming the first that does not fit."""
    own = stored_tensors(model)
    refuse_unlike("weight", weights, own)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])
