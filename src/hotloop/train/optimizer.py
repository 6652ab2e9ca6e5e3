"""From the config's words to torch's optimizer; and Muon, which torch has for one matrix at a time.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces each matrix's momentum by
the nearest matrix with all singular values about 1. Updates are scaled by 0.2 sqrt(longer side), which
gives them the size of AdamW's, so that one learning rate and weight decay serve both (Liu et al. 2025,
arXiv 2502.16982).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from hotloop.core.config import OptimizerConfig
from hotloop.models.decoder import Decoder

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic, chosen in the post for the steepest slope at zero rather than for convergence: after
`ITERATIONS` the singular values lie between about 0.7 and 1.2."""
ITERATIONS = 5


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, *, precision: str
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), SGD or Muon, over all parameters. `fused` must be resolved.

    Weight decay is that of matrices and embeddings, as in nanoGPT: it would draw the scales of norms to
    zero, where they switch their layer off, and biases hold nothing to keep small.
    `precision` is `train.precision`: in bf16 training Muon's own products are bf16 too.
    """
    assert config.fused != "auto", "auto is resolved before training"
    # None lets torch choose as it does by default
    fused = True if config.fused else None
    momentum = config.momentum
    match config.name:
        case "adamw":
            on_cpu = all(p.is_cpu for p in model.parameters())
            kind = AdamW if fused and on_cpu else torch.optim.AdamW
            return kind(
                decayed_apart(model.parameters()),
                lr=config.learning_rate,
                betas=(config.beta1, config.beta2),
                eps=config.epsilon,
                weight_decay=config.weight_decay,
                fused=fused,
            )
        case "sgd":
            sgd = torch.optim.SGD(
                decayed_apart(model.parameters()),
                lr=config.learning_rate,
                momentum=0.9 if momentum is None else momentum,
                nesterov=bool(config.nesterov),
                weight_decay=config.weight_decay,
                fused=fused,
            )
            if fused and momentum != 0:
                _start_momentum_at_zero(sgd)
            return sgd
        case "muon":
            assert isinstance(model, Decoder), "only that knows its blocks"
            matrices = model.block_matrices()
            theirs = {id(parameter) for parameter, _ in matrices}
            return Muon(
                matrices,
                [p for p in model.parameters() if id(p) not in theirs],
                lr=config.learning_rate,
                momentum=0.95 if momentum is None else momentum,
                nesterov=momentum != 0 if config.nesterov is None else config.nesterov,
                betas=(config.beta1, config.beta2),
                eps=config.epsilon,
                weight_decay=config.weight_decay,
                fused=bool(config.fused),
                dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
            )


def _start_momentum_at_zero(sgd: torch.optim.SGD) -> None:
    """A fused one fails where a weight has its first gradient after others; and one whose very first step is left out leaves
    the momentum unwritten, and then reads it."""
    for group in sgd.param_groups:
        for p in group["params"]:
            sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)


def decayed_apart(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Groups for an optimizer, of what is trained: matrices, with its weight decay; and vectors, without any."""
    every = [p for p in parameters if p.requires_grad]
    matrices, vectors = [p for p in every if p.ndim >= 2], [p for p in every if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


class Muon(torch.optim.Optimizer):
    """State per weight: `momentum` for the matrices; `step`, `exp_avg`, `exp_avg_sq` for the others.

    Where it is fused it heeds `found_inf`, as torch's fused optimizers do: a float () on the device set as
    an attribute, at 1.0 the step leaves everything as it was.
    """

    def __init__(
        self,
        matrices: Sequence[tuple[nn.Parameter, tuple[int, ...]]],
        others: Sequence[nn.Parameter],
        *,
        lr: float,
        momentum: float,
        nesterov: bool,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        fused: bool,
        dtype: torch.dtype,
    ) -> None:
        """`matrices` are 2-d; the rows with each say where several were stacked into one (queries, keys
        and values), to be orthogonalized apart. `dtype` is that of the products."""
        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "fused": fused or None}
        muon = {"params": [p for p, _ in matrices], "momentum": momentum, "nesterov": nesterov}
        adam = [{**group, "betas": betas, "eps": eps} for group in decayed_apart(others)]
        super().__init__([muon, *adam], shared)
        self._rows = [rows for _, rows in matrices]
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        matrices, *others = self.param_groups
        self._step_matrices(matrices)
        for group in others:
            self._step_others(group)

    def _step_matrices(self, group: dict[str, Any]) -> None:
        given = [(p, rows) for p, rows in zip(group["params"], self._rows) if p.grad is not None]
        if not given:
            return
        weights: list[Tensor] = [p for p, _ in given]
        grads: list[Tensor] = [p.grad for p, _ in given]
        for p in weights:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        moments = [self.state[p]["momentum"] for p in weights]
        skip = None if self._found_inf is None else self._found_inf > 0
        decay: float | Tensor = 1 - group["lr"] * group["weight_decay"]
        if skip is not None:
            # Chosen and not multiplied, as 0 times NaN is NaN: a momentum drawn to itself stays what it is.
            grads = [torch.where(skip, m, g) for m, g in zip(moments, grads, strict=True)]
            decay = torch.where(skip, 1.0, decay)
        torch._foreach_lerp_(moments, grads, 1 - group["momentum"])
        updates = moments
        if group["nesterov"]:
            updates = list(torch._foreach_lerp(grads, moments, group["momentum"]))
        torch._foreach_mul_(weights, decay)
        # One product per shape and not per matrix: a decoder has four to seven shapes whatever its depth.
        by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for weight, update, (_, rows) in zip(weights, updates, given, strict=True):
            pieces = rows or (weight.shape[0],)
            for target, piece in zip(weight.split(pieces), update.split(pieces), strict=True):  # type: ignore[no-untyped-call]
                if piece.shape[0] > piece.shape[1]:
                    target, piece = target.t(), piece.t()
                by_shape.setdefault(tuple(piece.shape), []).append((target, piece))
        for (_, longer), pairs in by_shape.items():
            targets = [target for target, _ in pairs]
            batch = orthogonalize(torch.stack([piece for _, piece in pairs]).to(self._dtype))
            if skip is not None:
                batch = batch.masked_fill(skip, 0.0)
            size = group["lr"] * 0.2 * math.sqrt(longer)
            torch._foreach_add_(targets, list(batch.to(targets[0].dtype)), alpha=-size)

    def _step_others(self, group: dict[str, Any]) -> None:
        weights = [p for p in group["params"] if p.grad is not None]
        _step_by_adamw(self, group, weights, [p.grad for p in weights])

    @property
    def _found_inf(self) -> Tensor | None:
        return getattr(self, "found_inf", None)


class AdamW(torch.optim.AdamW):
    """The fused one, for weights on a CPU whose gradients may be narrower than they are (`Tensor.grad_dtype`).

    Those are widened a few at a time, just before they are read: all at once, they would go to memory and back.
    """

    PART_BYTES = 7 << 20
    """Of wide gradients, at most, for which a processor's cache has room beside what an update reads and writes."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            given = [p for p in group["params"] if p.grad is not None]
            wide = [p for p in given if p.grad.dtype == p.dtype]
            _step_by_adamw(self, group, wide, [p.grad for p in wide])
            for part in self._parts([p for p in given if p.grad.dtype != p.dtype]):
                grads = [self._room(number, p) for number, p in enumerate(part)]
                torch._foreach_copy_(grads, [p.grad for p in part if p.grad is not None])
                _step_by_adamw(self, group, part, grads)

    def _parts(self, weights: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
        part, size = list[nn.Parameter](), 0
        for p in weights:
            if part and size + p.nbytes > self.PART_BYTES:
                yield part
                part, size = [], 0
            part.append(p)
            size += p.nbytes
        if part:
            yield part

    def _room(self, number: int, weight: nn.Parameter) -> Tensor:
        """Memory that all parts use in turn."""
        rooms, key = vars(self).setdefault("_rooms", {}), (number, weight.shape)
        if key not in rooms:
            rooms[key] = torch.empty_like(weight)
        room: Tensor = rooms[key]
        return room


def _step_by_adamw(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    weights: list[nn.Parameter],
    grads: list[Tensor],
) -> None:
    """A step of some weights of a group, as torch's own makes it of all."""
    for p in weights:
        state = optimizer.state[p]
        if not state:
            where = p.device if group["fused"] else torch.device("cpu")
            state["step"] = torch.zeros((), dtype=torch.float32, device=where)
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = torch.zeros_like(p)
    beta1, beta2 = group["betas"]
    adamw(
        weights,  # type: ignore[arg-type]
        grads,
        [optimizer.state[p]["exp_avg"] for p in weights],
        [optimizer.state[p]["exp_avg_sq"] for p in weights],
        [],
        [optimizer.state[p]["step"] for p in weights],
        fused=True if group["fused"] else None,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
        grad_scale=getattr(optimizer, "grad_scale", None),
        found_inf=getattr(optimizer, "found_inf", None),
    )


def orthogonalize(batch: Tensor) -> Tensor:
    """(n, a, b) with a <= b to the same shape: singular values near 1, singular vectors kept.

    Newton-Schulz, all n at once: three batched products per iteration.
    """
    a, b, c = COEFFICIENTS
    # The Frobenius norm is at least the largest singular value, which must not be above 1.
    x: Tensor = batch / batch.float().norm(dim=(1, 2), keepdim=True).clamp(min=1e-7).to(batch.dtype)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
