"""webdataset WebLoader, one worker: 120 updates.

Planted: a sample is decoded for about 4 ms of CPU; the model needs far less, so the loader is waited for.
"""

import io
import tarfile
import zlib

import numpy as np
import torch
import webdataset as wds
from torch import nn

noise = np.random.default_rng(0).integers(0, 40, 300_000, dtype=np.uint8)
PACKED = zlib.compress(noise.tobytes())


def decode(sample):
    wave = np.frombuffer(zlib.decompress(sample["wave"]), dtype=np.uint8)
    return torch.from_numpy(wave[:256].astype(np.float32)) / 40, int(sample["__key__"]) % 4


with tarfile.open("shard.tar", "w") as tar:
    for i in range(40):
        head = tarfile.TarInfo(f"{i:04d}.wave")
        head.size = len(PACKED)
        tar.addfile(head, io.BytesIO(PACKED))
torch.manual_seed(0)
data = (
    wds.WebDataset("shard.tar", shardshuffle=False, empty_check=False)
    .map(decode)
    .repeat()
    .batched(4)
)
loader = wds.WebLoader(data, batch_size=None, num_workers=1).with_epoch(120)
model = nn.Linear(256, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
made = 0
for waves, labels in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(waves), labels)
    loss.backward()
    optimizer.step()
    made += 1
print("updates", made, f"loss {loss.item():.5f}")
