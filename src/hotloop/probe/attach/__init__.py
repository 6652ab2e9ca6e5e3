"""Watches a foreign training process from inside. See docs/DOCTOR.md."""

import os
from pathlib import Path

from hotloop.core.child import DOCTOR, DOCTOR_STOP
from hotloop.probe.foreign_process import refuse_untested_torch


def install_from_environment() -> None:
    """Hook this process, if the doctor asked for it. Raises `TorchTooOld`."""
    refuse_untested_torch()
    directory = os.environ.get(DOCTOR)
    if directory:
        # Not sooner: it imports what an older torch lacks.
        from hotloop.probe.attach.install import install

        install(Path(directory), bound=os.environ.get(DOCTOR_STOP, ""))
