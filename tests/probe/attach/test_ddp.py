"""How DistributedDataParallel was made is in the census, and whether its search found parameters without gradient."""

from __future__ import annotations

from typing import Any

import pytest

from hotloop.core.census import DdpUse

TRAIN = """
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.steps = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1), 0
        self.rarely = torch.nn.Linear(8, 8)
    def forward(self, x):
        self.steps += 1
        x = self.first(x)
        return self.second(self.rarely(x) if self.steps % EVERY == 0 else x)
model = DistributedDataParallel(Model()ARGUMENTS)
train(model, torch.optim.AdamW(model.parameters()), 40)
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("arguments", "every", "seen"),
    [
        ("", 1, DdpUse(False, False, 0)),
        (", find_unused_parameters=True", 1, DdpUse(True, False, 0)),
        (", find_unused_parameters=True", 2, DdpUse(True, False, 288)),
        (", find_unused_parameters=True, static_graph=True", 1, DdpUse(False, False, 0)),
        (", gradient_as_bucket_view=True", 1, DdpUse(False, True, 0)),
    ],
)
def test_its_settings_are_seen(run: Any, arguments: str, every: int, seen: DdpUse) -> None:
    ended = run(TRAIN.replace("ARGUMENTS", arguments).replace("EVERY", str(every)))
    assert ended.census.ddp == seen
    assert ended.census.parallel == "DistributedDataParallel"
    assert not ended.notes
