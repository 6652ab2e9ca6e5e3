"""Models of Hugging Face's library: from written-out attention to torch's, where nobody asked for the first."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

TRAIN = """
import json, torch, transformers
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
transformers.logging.set_verbosity_error()
torch.manual_seed(0)
small = dict(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, hidden_size=32, intermediate_size=32,
             vocab_size=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
LlamaConfig(**small).save_pretrained("stored")
as_json = json.load(open("stored/config.json"))
json.dump(as_json | {"attn_implementation": "eager"}, open("stored/config.json", "w"))
torch.manual_seed(0)
MADE
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.randint(64, (2, 16))
losses = []
for step in range(3):
    optimizer.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses, model.config._attn_implementation]))
"""


def test_stored_config_that_says_eager_gets_sdpa_and_learns_the_same(run_foreign: Any) -> None:
    text = TRAIN.replace(
        "MADE", 'model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("stored"))'
    )
    plain, before = run_foreign(text).printed
    ran = run_foreign(text, {"attention": "sdpa"})
    losses, after = ran.printed
    assert (before, after) == ("eager", "sdpa")
    assert losses == pytest.approx(plain, rel=1e-5)
    assert ran.said == [("attention", True, "LlamaForCausalLM")]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            'model = AutoModelForCausalLM.from_config(LlamaConfig(**small), attn_implementation="eager")',
            "asks for eager attention at script.py:12",
        ),
        (
            'model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("stored", '
            'attn_implementation="eager"))',
            "asks for eager attention at script.py:12",
        ),
        (
            "model = AutoModelForCausalLM.from_config(LlamaConfig(**small))",
            "by sdpa already",
        ),
    ],
)
def test_what_the_script_asked_for_stays(run_foreign: Any, made: str, why: str) -> None:
    text = TRAIN.replace("MADE", made)
    ran = run_foreign(text, {"attention": "sdpa"})
    assert ran.printed == run_foreign(text).printed
    assert ran.applied == []
    assert why in ran.refused[0]


def test_attention_of_the_script_itself_is_not_rewritten(run_foreign: Any) -> None:
    ran = run_foreign(
        "import json, torch\nmodel = torch.nn.Linear(2, 2)\nmodel(torch.ones(1, 2))\nprint(json.dumps(1))",
        {"attention": "sdpa"},
    )
    assert "scaled_dot_product_attention" in ran.refused[0]
