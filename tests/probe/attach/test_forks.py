"""Where Python warns of threads in a process that forks, none of ours is there, and all go on afterwards."""

from __future__ import annotations

from typing import Any

SCRIPT = """
import json, os, threading, time
import hotloop.probe.background as background
background.WARNS_OF_THREADS = True  # as from Python 3.12 on
background.PATIENCE_S = 60.0  # of the usual 50 ms a busy machine may give the writer none, in the middle of its file
ours = []
# Hooks before a fork run in reverse order: this one sees what ours has left.
os.register_at_fork(before=lambda: ours.append([t.name for t in threading.enumerate() if "hotloop" in t.name]))
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, n):
        return torch.ones(8) * n

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
names = []
for epoch in range(4):
    for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.01)
    names.append(sorted(t.name for t in threading.enumerate() if "hotloop" in t.name))
print(json.dumps([ours, names]))
"""


def test_threads_are_gone_in_a_fork_and_back_after_it(run: Any) -> None:
    ended = run(SCRIPT, model="")
    forks, names = ended.last
    assert ended.returncode == 0, ended.err
    assert ended.notes == ""
    assert forks == [[]] * 8
    assert names == [["hotloop-memory", "hotloop-sampler", "hotloop-writer"]] * 4
    assert len(ended.steps) == 48
    assert ended.census.num_samples
