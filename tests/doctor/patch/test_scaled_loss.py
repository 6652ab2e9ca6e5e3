"""fp16 with a gradient scaler: by the live form, by the patch, and as it is written by hand, on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

Try = Callable[..., Any]

LOOP = """\
import gc
import json
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(8, 16), torch.randn(8, 4)
seen = []
for step in range(8):
    optimizer.zero_grad()
    for part in range(1 + step % 2):
        # At step 5 the loss is finite, and its gradient too large for float16.
        given = model(x[part::2])
        loss = (given - y[part::2]).square().mean() * (1e6 if step == 5 else 1)
        loss.backward()
    if step % 3:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    seen += [loss.item(), [each.tolist() for each in model.parameters()]]
scales = [each.get_scale() for each in gc.get_objects() if type(each) is torch.amp.GradScaler]
print(json.dumps([seen, scales]))
"""

BY_HAND = (
    LOOP.replace("seen = []", 'seen = []\nscaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)')
    .replace(
        "        given = model(x[part::2])",
        '        with torch.autocast("cpu", torch.float16):\n            given = model(x[part::2])\n'
        "        given = given.float()",
    )
    .replace("loss.backward()", "scaler.scale(loss).backward()")
    .replace("        torch.nn.utils", "        scaler.unscale_(optimizer)\n        torch.nn.utils")
    .replace("optimizer.step()", "scaler.step(optimizer)\n    scaler.update()")
)


def test_fp16_trains_to_the_bit_as_a_scaler_by_hand_and_so_does_its_patch(
    tried: Try, run_script: Callable[..., Any]
) -> None:
    found = tried({"train.py": LOOP, "hand.py": BY_HAND}, {"precision": "fp16"})
    by_hand = run_script(found.workdir, "hand.py")
    assert found.printed == by_hand
    seen, scales = by_hand
    assert scales == [2.0**13]  # halved once
    weights = seen[1::2]
    assert [one == other for one, other in itertools.pairwise(weights)] == [
        *(False,) * 4,
        True,
        *(False,) * 2,
    ]
    ledger = found.write()
    assert ledger.fixes[0].patch == "edited", ledger.fixes[0].patch_text
    found.apply()
    patched = (found.workdir / "train.py").read_text()
    for line in (
        'grad_scaler = torch.amp.GradScaler("cpu", init_scale=16384.0)',
        "        grad_scaler.scale(loss).backward()",
        "        grad_scaler.unscale_(optimizer)\n        torch.nn.utils.clip_grad_norm_",
        "    grad_scaler.step(optimizer)\n    grad_scaler.update()",
    ):
        assert line in patched
    assert run_script(found.workdir, "train.py") == by_hand


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("    optimizer.step()", "    optimizer.step(); step", "a line beside"),
        ("    optimizer.step()", "    [optimizer.step() for _ in range(1)]", "a line beside"),
        (
            "    optimizer.step()",
            "    for each in [optimizer]:\n        each.step()",
            "another one",
        ),
        ("    optimizer.step()", "    optimizer.step(None)", "given arguments"),
        (
            "    optimizer.step()",
            "    model[0].bias.grad.norm()\n    optimizer.step()",
            "reads gradients",
        ),
    ],
)
def test_loop_that_is_not_simple_is_left_to_words(tried: Try, old: str, new: str, why: str) -> None:
    found = tried({"train.py": LOOP.replace(old, new)}, {"precision": "fp16"})
    (fix,) = found.write().fixes
    assert fix.patch == "words"
    assert "`grad_scaler.unscale_(optimizer)` before gradients are clipped" in (
        fix.patch_text or ""
    )
    assert why in (fix.patch_text or "")
