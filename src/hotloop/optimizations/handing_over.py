"""The script's own iterator over a loader, that may take a batch from workers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from hotloop.optimizations.dataset_state import fingerprint
from hotloop.probe.random_state import random_state, same_state

if TYPE_CHECKING:
    from hotloop.optimizations.handover import Handover
    from hotloop.optimizations.unchanged import Unchanged


class HandingOver(_SingleProcessDataLoaderIter):
    """Made by turning an iterator into one."""

    def begin(self, handover: Handover, updates: int) -> None:
        """updates: of optimizers, so far."""
        self._handover = handover
        self.updates_before = updates
        self.by_workers = False
        self.left_over: deque[Any] = deque()
        """Indices that workers were given, and did not make."""
        self.num_indices = 0
        self.unchanged: Unchanged | None = None
        """Watches the dataset while it must stay what it is."""

    def _next_index(self) -> Any:
        if self.left_over:
            return self.left_over.popleft()
        self.num_indices += 1
        return super()._next_index()  # type: ignore[no-untyped-call]

    def _next_data(self) -> Any:
        return self._handover.next_batch(self)

    def make_here(self) -> Any:
        """As ever; where workers of the script's made it, a draw would be missing elsewhere."""
        if not self._handover.replaces_workers:
            return super()._next_data()  # type: ignore[no-untyped-call]
        before = random_state()
        try:
            return super()._next_data()  # type: ignore[no-untyped-call]
        finally:
            if not same_state(before, random_state()):
                self._handover.drew_here()
            if not self.num_left() and not self.left_over:
                self.end()

    def num_left(self) -> int | None:
        """Indices that the sampler has not given out yet, where it knows."""
        try:
            return max(len(self._index_sampler) - self.num_indices, 0)
        except (TypeError, NotImplementedError):
            return None

    def end(self) -> None:
        """All of it was given."""
        if self.unchanged is not None:
            self.unchanged.look()

    @property
    def state(self) -> str:
        """What its dataset and collate function are now."""
        return fingerprint(*self.parts)

    @property
    def parts(self) -> tuple[Any, Any]:
        return self._dataset, self._collate_fn
