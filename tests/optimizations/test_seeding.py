"""Random numbers that repeat from process to process, wherever a script draws them, unless it seeds itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.child import SAME_RANDOMNESS


@pytest.fixture
def drawn(run_foreign: Any, tmp_path: Path) -> Callable[..., Any]:
    """`drawn(script, seeded=..., fresh=...)`: what the script prints, as JSON."""

    def run(script: str, *, seeded: bool = True, fresh: bool = False) -> Any:
        # Another probe looks for torch too: both must find it.
        seeds = {SAME_RANDOMNESS: str(tmp_path), "HOTLOOP_STEP_CLOCK": str(tmp_path)}
        return run_foreign(script, environment=seeds if seeded else None, fresh=fresh).printed

    return run


EVERYWHERE = """
import json, random
early = random.random()
import numpy as np
from numpy.random import default_rng
first = float(np.random.random())
import torch
from torch.utils.data import DataLoader
class Noisy(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return float(torch.rand(())) + random.random() + float(np.random.random())
loader = DataLoader(Noisy(), shuffle=True, num_workers=1)
print(json.dumps([
    early, first, float(torch.rand(())), random.random(), float(np.random.random()),
    [float(default_rng().random()) for _ in range(2)],
    [float(x) for x in loader],
]))
"""


@pytest.mark.usefixtures("without_compiler")
def test_every_source_of_random_numbers_repeats(drawn: Callable[..., Any]) -> None:
    # Fresh: NumPy is imported before torch, and forks of one process draw the same without a seed.
    one, two = (drawn(EVERYWHERE, fresh=True) for _ in range(2))
    assert one == two
    assert one[5][0] != one[5][1]  # each generator has a seed of its own
    plain = drawn(EVERYWHERE, seeded=False, fresh=True)
    assert all(a != b for a, b in zip(one, plain, strict=True))


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize(
    "script",
    [
        "import json, torch; torch.manual_seed(7); print(json.dumps(float(torch.rand(()))))",
        "import json, torch, random; random.seed(7); print(json.dumps(random.random()))",
        "import json, numpy as np; np.random.seed(7); print(json.dumps(float(np.random.random())))",
        "import json, numpy as np; print(json.dumps(float(np.random.default_rng(7).random())))",
    ],
)
def test_what_the_script_seeds_itself_wins(drawn: Callable[..., Any], script: str) -> None:
    fresh = "numpy" in script  # a process that holds torch has imported it already
    seeded = drawn(script, fresh=fresh)
    assert seeded == drawn(script, seeded=False, fresh=fresh)


def test_compiled_code_draws_as_eager_code_does(drawn: Callable[..., Any]) -> None:
    script = "import json, torch, torch._inductor.config as c; print(json.dumps(c.fallback_random))"
    assert drawn(script, fresh=True) is True
    assert drawn(script, seeded=False) is False
