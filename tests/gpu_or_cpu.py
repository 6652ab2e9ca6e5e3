"""Where the tests of `tests/gpu` run: on a GPU, or with HOTLOOP_TEST_DEVICE=cpu on the CPU.

There only what holds on a CPU too is asserted: that shows what is wrong with a test before it takes time of a GPU.
"""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = os.environ.get("HOTLOOP_TEST_DEVICE", "cuda")
ON_GPU = DEVICE != "cpu"
ON_A_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="needs a CUDA device"),
]
only_there = pytest.mark.skipif(not ON_GPU, reason="a GPU alone has it")
