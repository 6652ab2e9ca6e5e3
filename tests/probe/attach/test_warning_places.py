"""Warnings name the same lines with the probe as without it."""

from __future__ import annotations

import pytest

SCRIPT = """
import warnings
from torch.utils.data import DataLoader, IterableDataset
class Short(IterableDataset):
    def __len__(self): return 2
    def __repr__(self): return "Short"
    def __iter__(self): return iter(torch.ones(4, 8))
model, optimizer = build()
class Loud(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.inner = model
    def forward(self, x):
        warnings.warn("whoever calls the model", stacklevel=4)
        warnings.warn("here")
        return self.inner(x)
loud = Loud()
def inner():
    warnings.warn("two up", UserWarning, 3)
def outer():
    inner()
for x in DataLoader(torch.ones(24, 8), batch_size=4, pin_memory=True):
    optimizer.zero_grad(); loud(x).square().mean().backward(); optimizer.step()
short = DataLoader(Short(), batch_size=1); len(short); DataLoader.__repr__ = lambda self: "loader"
for x in short: pass
outer()
warnings.warn("far out", stacklevel=50)
try:
    warnings.warn("wrong", stacklevel="2")
except TypeError as error:
    print(error)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    warnings.warn(DeprecationWarning("old"), stacklevel=2)
print([(each.category.__name__, each.filename, each.lineno) for each in seen])
warnings.simplefilter("error")
try:
    warnings.warn("raised")
except UserWarning as error:
    print(repr(error))
"""


@pytest.mark.usefixtures("without_compiler")
def test_every_warning_is_printed_as_without_the_probe(run) -> None:  # type: ignore[no-untyped-def]
    watched, alone = run(SCRIPT, fresh=True), run(SCRIPT, watched=False, fresh=True)
    assert len(watched.steps) == 6
    assert watched.err.replace("work-0", "work-1") == alone.err
    assert watched.out.replace("work-0", "work-1") == alone.out
    for said in ("pin_memory", "whoever calls", "here", "Length of Iter", "two up", "far out"):
        assert said in alone.err
