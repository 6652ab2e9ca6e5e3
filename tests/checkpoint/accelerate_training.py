"""Trains with Accelerate: `python accelerate_training.py DIRECTORY KILL_AT KIND`; prints all losses and the digest of its end."""

import hashlib
import os
import signal
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotloop.checkpoint import Checkpointer, ResumableLoader

directory, kill_at, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
accelerator = Accelerator(
    cpu=os.environ.get("HOTLOOP_TEST_DEVICE", "cpu") == "cpu",  # as tests/gpu sets it
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=kind == "seedable"),
)
set_seed(3)
draw = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(44, 4, generator=draw), torch.randn(44, 1, generator=draw))
own = torch.Generator().manual_seed(5) if kind == "generator" else None
loader = DataLoader(data, 4, shuffle=True, generator=own)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=200)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
loader = ResumableLoader(loader)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader, "scaler": accelerator.scaler}  # fmt: skip
losses: list[str] = []
with Checkpointer(directory, every_rank=True) as checkpointer:
    if resumed := checkpointer.load_latest(**parts):
        losses = resumed.extra
    step = resumed.step if resumed else 0
    print("resumed", resumed and resumed.step)
    while loader.epoch < 3:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item().hex())
            if accelerator.sync_gradients:
                step += 1
                checkpointer.save(step, **parts, extra=losses)
                if step == kill_at:
                    checkpointer.wait()
                    os.kill(os.getpid(), signal.SIGKILL)
digest = hashlib.sha256()
for tensor in accelerator.unwrap_model(model).state_dict().values():
    digest.update(tensor.cpu().numpy().tobytes())
print("end", step, digest.hexdigest(), *losses)
accelerator.end_training()
