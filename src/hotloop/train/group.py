"""The processes that train together, as the loop sees them: one alone, or several that share each step.

Several processes (ranks) hold the same weights. Each takes its share of a step's microbatches, in the
order that one process would take them, and goes backward from its part of the mean over all targets of
the step; the gradients are summed over the ranks bucket by bucket while the backward still computes.
So any number of ranks learns the same, but for the order of sums. DistributedDataParallel does the
bucketing; its average is replaced by a sum, which is exact for any number of ranks.

Not `static_graph`: with accumulation under `no_sync` torch 2.13 fails at the first backward, and it only
saves a search for unused weights that is off here anyway.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hotloop.core.config import LoopConfig
from hotloop.core.errors import EnvironmentFailed, first_line
from hotloop.core.ranks import ALONE, Ranks
from hotloop.optimizations.gradient_compression.trainer import sum_over_ranks
from hotloop.probe.phases import PhaseClock
from hotloop.train.interruption import StopRequest

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket, Store

T = TypeVar("T")


class CannotConnect(EnvironmentFailed):
    """No connection to the other ranks."""


class Group:
    """One process: it has nobody to ask, and every answer is its own."""

    ranks: Ranks = ALONE
    sent_gradient_dtype: str | None = None
    """As the gradients were seen to travel; `None` when nothing was sent yet."""

    def replicate(self, model: nn.Module) -> nn.Module:
        """What the loop calls instead of the model."""
        return model

    def book_waits(self, clock: PhaseClock) -> None:
        """Book the time that this process waits for others in `clock` from now on."""

    def microbatch(self, *, last: bool) -> AbstractContextManager[object]:
        """Around the forward and the backward of one: gradients are sent after the last one alone."""
        return nullcontext()

    def backward(self) -> AbstractContextManager[object]:
        """Around a backward: tells computing from waiting for others."""
        return nullcontext()

    def totals(self, loss: Tensor, stop: StopRequest) -> Callable[[], dict[str, Tensor]]:
        """Ask for the `loss` of the whole step; the function that is returned gets it, on the device.

        Asked before the last backward and got after it, it costs no time of its own.
        """
        return lambda: {"loss": loss}

    def stops(self, stop: StopRequest, known: Mapping[str, float] | None) -> bool:
        """True to stop now, the same on every rank; `known` are the newest late values."""
        return stop.asked

    def summed(self, value: Tensor) -> Tensor:
        """`value` summed over the ranks; waits for them."""
        return value

    def decided(self, action: Callable[[], T]) -> T:
        """What `action` returns on the first rank, which alone does it."""
        return action()

    def gathered(self, states: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """The same CPU tensors of every rank, by rank; all hold those of the same names and shapes."""
        return [states]

    def refuse_drift(self, model: nn.Module) -> None:
        """Raises `EnvironmentFailed` when the ranks no longer hold the same weights."""

    def level(self) -> None:
        """Wait until every rank is here."""


class Several(Group):
    """Ranks that torchrun started: gloo between CPUs, NCCL between GPUs. NCCL ran with one rank, not yet with two."""

    def __init__(
        self, ranks: Ranks, store: Store, device: torch.device, config: LoopConfig
    ) -> None:
        self.ranks = ranks
        self._device = device
        assert config.train.gradient_compression != "auto", "auto is resolved before training"
        self._compression: str = config.train.gradient_compression
        self._replica: DistributedDataParallel | None = None
        self._clock: PhaseClock | None = None
        self._waits = False
        if device.type == "cuda":
            torch.cuda.set_device(device)
        try:
            dist.init_process_group(
                # What is on the host is asked of the host: a question about it must not stall the GPU.
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=store,
                rank=ranks.rank,
                world_size=ranks.num_ranks,
                timeout=timedelta(seconds=config.train.rank_timeout_s),
            )
        except RuntimeError as error:
            raise CannotConnect(
                f"the ranks cannot be connected: {first_line(error)}",
                where=socket.gethostname(),
                do="GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the network interface to use",
            ) from error

    def replicate(self, model: nn.Module) -> nn.Module:
        self._replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
        # Set and not passed, since the argument's name depends on the version: no buffer ever changes.
        self._replica.broadcast_buffers = False
        self._replica.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))
        return self._replica

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Called by the backward for each bucket whose gradients are complete."""
        if bucket.is_last() and self._clock is not None:
            # All gradients of this rank are computed. What is left of the backward is waiting. A GPU has
            # not computed them yet when the host is here, so that there nothing is told apart.
            self._clock.phase("grad_sync").__enter__()
            self._waits = True
        summed, sent = sum_over_ranks(bucket.buffer(), self._compression)
        self.sent_gradient_dtype = str(sent).removeprefix("torch.")
        return summed

    def book_waits(self, clock: PhaseClock) -> None:
        self._clock = clock if self._device.type == "cpu" else None

    def microbatch(self, *, last: bool) -> AbstractContextManager[object]:
        assert self._replica is not None
        return nullcontext() if last else self._replica.no_sync()

    @contextmanager
    def backward(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self._waits and self._clock is not None:
                self._waits = False
                self._clock.phase("grad_sync").__exit__(None, None, None)

    def totals(self, loss: Tensor, stop: StopRequest) -> Callable[[], dict[str, Tensor]]:
        # full, not tensor: a copy from the host would wait for the device.
        asked = torch.full((), float(stop.asked), device=loss.device)
        both = torch.stack([loss.detach().float(), asked])
        work = dist.all_reduce(both, async_op=True)

        def get() -> dict[str, Tensor]:
            with self._clock.phase("grad_sync") if self._clock is not None else nullcontext():
                work.wait()  # of a GPU only its stream waits
            return {"loss": both[0], "stop": both[1]}

        return get

    def stops(self, stop: StopRequest, known: Mapping[str, float] | None) -> bool:
        # A signal reaches the ranks at different moments: what counts is the sum that all have read.
        return known is not None and known["stop"] > 0

    def summed(self, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    def decided(self, action: Callable[[], T]) -> T:
        # Nothing is caught: when the first rank fails here, the others learn it from their rendezvous.
        box: list[T | None] = [action() if self.ranks.is_first else None]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]  # type: ignore[return-value]

    def gathered(self, states: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        names = sorted(states)
        sizes = [states[name].numel() for name in names]
        flat = torch.cat([states[name].reshape(-1) for name in names])
        every = [torch.empty_like(flat) for _ in range(self.ranks.num_ranks)]
        dist.all_gather(every, flat)
        return [
            {
                name: piece.clone().reshape(states[name].shape)
                for name, piece in zip(names, each.split(sizes), strict=True)  # type: ignore[no-untyped-call]
            }
            for each in every
        ]

    def refuse_drift(self, model: nn.Module) -> None:
        # The bits as whole numbers: their sum does not depend on the order.
        sums = [p.detach().view(torch.int32).sum(dtype=torch.int64) for p in model.parameters()]
        own = torch.stack(sums).cpu()
        for rank, each in enumerate(self.gathered({"sums": own})):
            if not torch.equal(each["sums"], own):
                one, other = sorted((self.ranks.rank, rank))
                raise EnvironmentFailed(
                    f"ranks {one} and {other} no longer hold the same weights; nothing was saved",
                    where=socket.gethostname(),
                    do="their machines compute differently or one is faulty: train on machines of one kind; "
                    "what was saved before is kept",
                )

    def level(self) -> None:
        dist.all_reduce(torch.zeros(1))  # of a CPU tensor: barrier() would wait for the GPU


def seed_of(seed: int, step: int, rank: int) -> int:
    """The seed of a rank's dropout where no checkpoint has its random state: another for every rank."""
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    return int.from_bytes(digest[:7])
