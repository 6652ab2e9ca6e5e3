"""HF Trainer: GPT-2 causal language model on SDPA with its usual dropout; `--steps N`, `--resume`.

Planted: sequences of 16 to 64 tokens padded to 64. Attention is SDPA's already; on a CPU its dropout makes
torch choose the kernel written out. One update per step; the count goes to the file `made`.
"""

import os
import sys

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)  # fmt: skip

LONGEST = 64
FILE = os.open("made", os.O_CREAT | os.O_WRONLY)
UPDATES = int(sys.argv[sys.argv.index("--steps") + 1])


class Texts(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        length = int(torch.randint(16, LONGEST + 1, (), generator=draw))
        ids = torch.randint(1, 300, (LONGEST,), generator=draw)
        mask = torch.arange(LONGEST) < length
        return {
            "input_ids": ids * mask,
            "attention_mask": mask.long(),
            "labels": torch.where(mask, ids, -100),
        }


class Count(TrainerCallback):
    made = 0

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.made += 1
        os.pwrite(FILE, b"%d" % self.made, 0)


set_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=300, n_positions=LONGEST, n_embd=128, n_layer=2, n_head=4)
)
assert model.config._attn_implementation == "sdpa"
assert model.config.attn_pdrop > 0
arguments = TrainingArguments(
    output_dir="saved", max_steps=UPDATES, per_device_train_batch_size=8, save_steps=30,
    logging_steps=10, report_to="none", use_cpu=True, disable_tqdm=True,
)  # fmt: skip
count = Count()
trainer = Trainer(model, arguments, train_dataset=Texts(), callbacks=[count])
trainer.train(resume_from_checkpoint="--resume" in sys.argv)
print("updates", count.made, "at step", trainer.state.global_step)
