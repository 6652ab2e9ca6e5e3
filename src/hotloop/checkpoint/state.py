"""Everything that decides what a run does next, as tensors and JSON."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

from hotloop.core.errors import UsageError

FILES = ("model", "optimizer", "random")
"""Names of the tensor files of a training checkpoint."""


def random_file(rank: int) -> str:
    """Name of the file with the random states of one of several processes."""
    return f"random-{rank}" if rank else "random"


def capture(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Weights, optimizer, gradient scaler and random states. Tensors are copied to the CPU."""
    names = {id(p): name for name, p in model.named_parameters()}
    optimizer_tensors: dict[str, Tensor] = {}
    for parameter, slots in optimizer.state.items():
        for slot, value in slots.items():
            optimizer_tensors[f"{names[id(parameter)]}/{slot}"] = (
                torch.as_tensor(value).detach().cpu()
            )
    random_tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        for index, generator in enumerate(torch.cuda.get_rng_state_all()):
            random_tensors[f"cuda{index}"] = generator
    version, integers, gauss = random.getstate()
    tensors = {
        # clone: tied weights share memory, which safetensors refuses to write twice
        "model": {name: p.detach().cpu().clone() for name, p in model.named_parameters()},
        "optimizer": optimizer_tensors,
        "random": random_tensors,
    }
    state = {
        "python_random": [version, list(integers), gauss],
        "scaler": scaler.state_dict() if scaler is not None else None,
    }
    return tensors, state


def restore(
    tensors: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None,
) -> None:
    """The inverse of `capture`, in place. Raises `UsageError` when the model has other weights."""
    restore_weights(tensors["model"], model)
    optimizer_state: dict[int, dict[str, Tensor]] = {}
    groups = optimizer.state_dict()["param_groups"]
    index_of = {
        id(parameter): index
        for group, saved in zip(optimizer.param_groups, groups, strict=True)
        for parameter, index in zip(group["params"], saved["params"], strict=True)
    }
    by_name = {name: index_of[id(p)] for name, p in model.named_parameters()}
    for key, value in tensors["optimizer"].items():
        name, slot = key.rsplit("/", 1)
        optimizer_state.setdefault(by_name[name], {})[slot] = value
    optimizer.load_state_dict({"state": optimizer_state, "param_groups": groups})
    if scaler is not None and state["scaler"] is not None:
        scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(tensors["random"]["torch"])
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if f"cuda{index}" in tensors["random"]:
                torch.cuda.set_rng_state(tensors["random"][f"cuda{index}"], index)
    version, integers, gauss = state["python_random"]
    random.setstate((version, tuple(integers), gauss))


def capture_random(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random generators of one of several processes, uint8 each."""
    states = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["device"] = torch.cuda.get_rng_state(device)
    return states


def restore_random(states: dict[str, Tensor], device: torch.device) -> None:
    """The inverse of `capture_random`."""
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "device" in states:
        torch.cuda.set_rng_state(states["device"], device)


def restore_weights(weights: dict[str, Tensor], model: nn.Module) -> None:
    """Copy weights into the model. Raises `UsageError` naming the first that does not fit."""
    own = dict(model.named_parameters())
    for name in sorted(own.keys() ^ weights.keys()):
        place = "the checkpoint" if name in own else "the model"
        raise UsageError(f"weight `{name}` is missing in {place}", do="use the config of that run")
    for name, parameter in own.items():
        if parameter.shape != weights[name].shape:
            raise UsageError(
                f"weight `{name}` is {tuple(weights[name].shape)} in the checkpoint and "
                f"{tuple(parameter.shape)} in the model",
                do="use the config of that run",
            )
        with torch.no_grad():
            parameter.copy_(weights[name])
