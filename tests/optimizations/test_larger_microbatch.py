"""transformers' Trainer accumulates over fewer, larger microbatches: the same samples and losses per step."""

from __future__ import annotations

from typing import Any

import pytest

from hotloop.core.census import Census
from hotloop.optimizations.larger_microbatch import LARGER_MICROBATCH
from hotloop.optimizations.larger_microbatch.live import OTHER_LOOPS

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

TRAIN = """
import json, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
torch.manual_seed(0)
shape = dict(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1)
model = GPT2LMHeadModel(GPT2Config(**shape, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
ids = torch.randint(16, (22, 8))
data = [{"input_ids": each, "labels": each} for each in ids]
args = TrainingArguments(
    output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=4,
    num_train_epochs=2, logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, MORE
)
trainer = Trainer(model, args, train_dataset=data)
trainer.train()
losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
print(json.dumps({"losses": losses, "rows": args.per_device_train_batch_size, "steps": trainer.state.global_step}))
"""
ACCUMULATES = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    for _ in range(4):
        (model(torch.ones(2, 4)).mean() / 4).backward()
    optimizer.step()
print(0)
"""


def test_trainer_takes_the_same_samples_in_one_larger_microbatch(run_foreign: Any) -> None:
    script = TRAIN.replace("MORE", "")
    plain, ran = run_foreign(script).printed, run_foreign(script, {"larger_microbatch": 1})
    assert (plain["rows"], ran.printed["rows"]) == (2, 8)
    assert plain["steps"] == ran.printed["steps"] == 6  # the last of an epoch is smaller
    assert [float(each) for each in ran.printed["losses"]] == pytest.approx(
        [float(each) for each in plain["losses"]], rel=1e-3
    )
    assert ran.applied == ["per_device_train_batch_size=8, gradient_accumulation_steps=1"]
    assert ran.lines[0]["site"]["frames"][0]["direct"]  # so that the patch edits that call


def test_arguments_that_decide_over_batches_as_well_stay_as_they_are(run_foreign: Any) -> None:
    script = TRAIN.replace("MORE", "dataloader_drop_last=True")
    ran = run_foreign(script, {"larger_microbatch": 1})
    assert ran.printed["rows"] == 2
    assert ran.refused == ["the script sets dataloader_drop_last"]


def test_loop_that_divides_its_loss_is_told_why_it_stays(run_foreign: Any) -> None:
    assert run_foreign(ACCUMULATES, {"larger_microbatch": 1}).refused == [OTHER_LOOPS]


def test_census_tells_whether_a_step_has_that_many_microbatches() -> None:
    assert LARGER_MICROBATCH.observed(Census(microbatches=8.0), 1) is False
    assert LARGER_MICROBATCH.observed(Census(microbatches=1.0), 1) is True
    assert LARGER_MICROBATCH.observed(Census(), 1) is None
