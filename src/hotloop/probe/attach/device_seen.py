"""Which device trains, and what its allocator did. Asks torch alone; waits for nothing. Not yet run on a GPU."""

from __future__ import annotations

import torch


class DeviceSeen:
    """Of a CUDA device; everything is `None` elsewhere."""

    def __init__(self) -> None:
        self.uuid: str | None = None
        self.name: str | None = None
        self.memory_bytes: int | None = None
        self.capability: tuple[int, int] | None = None
        self._device: torch.device | None = None
        self._retries_before: int | None = None

    def began(self, device: torch.device) -> None:
        """Training happens on it."""
        if device.type != "cuda":
            return
        self._device = device
        found = torch.cuda.get_device_properties(device)
        uuid = getattr(found, "uuid", None)
        self.uuid = None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"
        self.name, self.memory_bytes = found.name, found.total_memory
        self.capability = (found.major, found.minor)

    def first_counted(self) -> None:
        """The warm-up is over."""
        self._retries_before = self._all_retries()

    @property
    def alloc_retries(self) -> int | None:
        """Over the counted steps."""
        now, before = self._all_retries(), self._retries_before
        return None if now is None or before is None else now - before

    @property
    def allocated_bytes(self) -> int | None:
        """Highest so far."""
        return None if self._device is None else torch.cuda.max_memory_allocated(self._device)

    @property
    def reserved_bytes(self) -> int | None:
        """Highest so far."""
        return None if self._device is None else torch.cuda.max_memory_reserved(self._device)

    def _all_retries(self) -> int | None:
        if self._device is None:
            return None
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))
