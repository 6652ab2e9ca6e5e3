"""The gradient of an embedding in a compiled training: added up in one order, whatever the number of threads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotloop.hardware.device import why_compile_cannot_run
from hotloop.optimizations.compiling.trainer import compile_model


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.table(words).square().sum()


def test_no_thread_adds_to_what_another_adds_to(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := why_compile_cannot_run(torch.device("cpu")):
        pytest.skip(why)
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setenv("CI", "1")  # where torch refuses what it would itself do otherwise
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = Words()
        compile_model(model, True)  # type: ignore[arg-type]
        words = torch.randint(50, (4, 64))
        _, code = run_and_get_code(lambda: model(words).backward())
    finally:
        torch.set_num_threads(threads)
    assert "embedding_dense_backward" in "".join(code)
    assert "atomic_add" not in "".join(code)
