"""Watches a foreign training process from inside. See docs/DOCTOR.md."""

from typing import TYPE_CHECKING

from hotloop.probe.foreign_process import refuse_untested_torch

if TYPE_CHECKING:
    from hotloop.probe.attach.watch import Watch


def install_from_environment() -> "Watch | None":
    """Hook this process. Raises `TorchTooOld` before anything is imported that an older torch lacks."""
    refuse_untested_torch()
    from hotloop.probe.attach.install import install_from_environment as install

    return install()
