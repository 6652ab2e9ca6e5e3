"""Reads the tensors of a safetensors file that anybody may have written. Loads torch when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.untrusted import open_regular


def read_tensors(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """Each tensor by its name, on the CPU. `mapped` leaves them in the file until they are used.

    Raises `OSError` where the file cannot be read, and `UsageError` for any content that is no tensors.
    """
    import safetensors.torch

    try:
        with open_regular(path) as file:
            if mapped:
                return dict(safetensors.torch.load_file(path))
            return dict(safetensors.torch.load(file.read()))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UsageError(f"cannot read the tensors: {error}", where=str(path)) from error
