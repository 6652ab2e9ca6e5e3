"""The rates of a fine-tuning are those of transformers' Trainer."""

import pytest
import torch
import transformers

from hotloop.core.causal_config import CausalConfig
from hotloop.core.finetune_config import FinetuneConfig
from hotloop.train.update import learning_rate


@pytest.mark.parametrize("kind", [FinetuneConfig, CausalConfig])
def test_the_linear_rate_is_that_of_trainer_to_the_last_step(kind: type) -> None:
    chosen = kind.model_validate(
        {
            "task": "text" if kind is CausalConfig else "classification",
            "data": {"file": "a.jsonl"},
            "model": {"path": "model"},
            "train": {"steps": 7},
        }
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=5e-5)
    theirs = transformers.get_linear_schedule_with_warmup(optimizer, 0, 7)
    for step in range(7):
        assert learning_rate(chosen, step) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    assert learning_rate(chosen, 6) > 0
