"""Checkpointing of a Hugging Face model: the same losses, other models refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from hotloop.optimizations.activation_checkpointing import ACTIVATION_CHECKPOINTING

pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

TRAIN = """
import json, torch, transformers
from transformers import GPT2Config, GPT2LMHeadModel
transformers.logging.set_verbosity_error()
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16, bos_token_id=1,
                                   eos_token_id=2))
SETUP
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.randint(64, (2, 16))
calls = []
model.transformer.h[0].attn.register_forward_pre_hook(lambda *_: calls.append(1))
losses = []
for step in range(3):
    optimizer.zero_grad()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses, len(calls)]))
"""


def test_blocks_are_computed_twice_and_the_losses_are_the_same(run_foreign: Any) -> None:
    """Dropout is on: what is computed again must draw the same random numbers."""
    text = TRAIN.replace("SETUP", "")
    plain, calls = run_foreign(text).printed
    ran = run_foreign(text, {"checkpointing": True})
    assert calls == 3
    assert ran.printed == [plain, 6]
    assert ran.said == [("checkpointing", True, "GPT2LMHeadModel")]


def test_what_the_script_turned_on_stays(run_foreign: Any) -> None:
    text = TRAIN.replace("SETUP", 'model.gradient_checkpointing_enable({"use_reentrant": False})')
    ran = run_foreign(text, {"checkpointing": True})
    assert ran.said == [("checkpointing", False, "GPT2LMHeadModel: the script has turned it on")]


def test_model_whose_blocks_nobody_knows_is_refused(run_foreign: Any) -> None:
    ran = run_foreign(
        "import json, torch\nmodel = torch.nn.Linear(2, 2)\nmodel(torch.ones(1, 2))\nprint(json.dumps(1))",
        {"checkpointing": True},
    )
    assert ran.applied == []
    assert "torch.utils.checkpoint.checkpoint" in ran.refused[0]


def test_it_is_a_what_if_that_answers_no_finding() -> None:
    assert ACTIVATION_CHECKPOINTING.what_if
    assert ACTIVATION_CHECKPOINTING.answers == ()


RECOMPUTED = """
import json, torch
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.head(checkpoint(self.block, x, use_reentrant=False))

model = Net()
model(torch.ones(4, 8)).sum().backward()
print(json.dumps([str(model.block.weight.grad.dtype), model.block._compiled_call_impl is None]))
"""


@pytest.mark.parametrize("fix", [{"precision": "bf16"}, {"compile": True}])
def test_block_that_is_computed_again_is_part_of_its_model(
    run_foreign: Any, fix: dict[str, Any]
) -> None:
    """Inside the pass backward it is called from outside of any module."""
    ran = run_foreign(RECOMPUTED, fix)
    assert ran.printed == ["torch.float32", True]
    assert [what for what in ran.applied + ran.refused if "Linear" in what] == []
