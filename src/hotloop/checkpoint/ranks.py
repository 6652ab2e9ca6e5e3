"""What the processes of one training have each of their own: random states, and the positions of loaders."""

from __future__ import annotations

from typing import Any

from torch import distributed, nn

from hotloop.core.errors import UsageError


def rank() -> int:
    """Of this process in the default group; 0 where there is none."""
    return distributed.get_rank() if _in_group() else 0


def num_ranks() -> int:
    return distributed.get_world_size() if _in_group() else 1


def _in_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def is_own(part: Any) -> bool:
    """Whether each process has another one: a loader or a sampler, which can be iterated over."""
    return hasattr(part, "__iter__") and not isinstance(part, nn.Module)


def gathered(own: dict[str, Any]) -> list[dict[str, Any]] | None:
    """`own` of each process, on rank 0; `None` on the others. Every process has to call it."""
    if num_ranks() == 1:
        return [own]
    found: list[Any] | None = None if rank() else [None] * num_ranks()
    distributed.gather_object(own, found)
    return found


def refuse_unlike_steps(step: int | None) -> None:
    """Raises `UsageError` on every process unless all would continue from one step. Every process has to call it."""
    found: list[Any] = [step] * num_ranks()
    if len(found) > 1:
        distributed.all_gather_object(found, step)
    if len(set(found)) > 1:
        what = f"the newest checkpoints that the {len(found)} processes find are of steps {found}"
        raise UsageError(what, do="give all of them one directory")
