"""Trains with the Hugging Face Trainer, which continues from its newest checkpoint; `hotloop`: from hotloop's."""

import sys
from pathlib import Path

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

transformers.set_seed(1)
ids = torch.randint(0, 100, (96, 16), generator=torch.Generator().manual_seed(0))
data = [{"input_ids": each, "labels": each} for each in ids]
config = GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2)
args = TrainingArguments(
    "out", per_device_train_batch_size=4, max_steps=60, save_steps=10, save_total_limit=2, report_to=[], use_cpu=True,
    learning_rate=1e-3,
)  # fmt: skip
trainer = Trainer(GPT2LMHeadModel(config), args, train_dataset=data)
if "hotloop" in sys.argv:
    import hotloop.checkpoint

    latest = hotloop.checkpoint.TransformersCallback(trainer, "checkpoints", keep=2).latest()
else:
    latest = get_last_checkpoint("out") if Path("out").is_dir() else None
trainer.train(resume_from_checkpoint=latest)
