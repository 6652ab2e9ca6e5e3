"""hotloop finds what holds a PyTorch training run back, fixes it, and proves it.

Importing this package changes nothing in the process and loads neither torch nor any dependency.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__version__ = "0.1.0"

_step_ended: Callable[[], object] | None = None
"""Set by the probe in a process that is watched."""


def step() -> None:
    """Say that a training step ends here, for `hotloop doctor` where it can not tell by itself.

    Costs nothing worth measuring in a process that nobody watches.
    """
    if _step_ended is not None:
        _step_ended()
