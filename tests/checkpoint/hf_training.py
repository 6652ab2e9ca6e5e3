"""Trains with the Hugging Face Trainer: `python hf_training.py DIRECTORY KILL_AT`; prints the digest of its end."""

import hashlib
import os
import signal
import sys

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from hotloop.checkpoint import TransformersCallback


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        ids = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **named):
        if state.global_step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)


DEVICE = os.environ.get("HOTLOOP_TEST_DEVICE", "cpu")  # as tests/gpu sets it
set_seed(3)
config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1)  # fmt: skip
model = GPT2LMHeadModel(config)
args = TrainingArguments(
    sys.argv[1], per_device_train_batch_size=4, num_train_epochs=2, save_steps=4, eval_strategy="steps", eval_steps=4,
    logging_steps=1, report_to=[], use_cpu=DEVICE == "cpu", disable_tqdm=True, lr_scheduler_type="cosine",
)  # fmt: skip
trainer = Trainer(
    model=model, args=args, train_dataset=Texts(), eval_dataset=Texts(), callbacks=[Kill()]
)
callback = TransformersCallback(trainer, sys.argv[1] + "/checkpoints")
latest = callback.latest()
print("resumed", latest)
trainer.train(resume_from_checkpoint=latest)
digest = hashlib.sha256(repr([row.get("loss") for row in trainer.state.log_history]).encode())
for tensor in model.state_dict().values():
    digest.update(tensor.cpu().numpy().tobytes())
print("end", digest.hexdigest())
