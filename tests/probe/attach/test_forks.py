"""Where Python warns of threads in a process that forks, none of ours is there, and all go on afterwards."""

from __future__ import annotations

from typing import Any

SCRIPT = """
import os, threading
import hotloop.probe.background as background
background.WARNS_OF_THREADS = True  # as from Python 3.12 on
ours = []
# Hooks before a fork run in reverse order: this one sees what ours has left.
os.register_at_fork(before=lambda: ours.append([t.name for t in threading.enumerate() if "hotloop" in t.name]))
"""
LOOP = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, n):
        return torch.ones(8) * n

model, optimizer = build()
names = []
for epoch in range(4):
    for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2):
        train(model, optimizer, 1)
        time.sleep(0.01)
    names.append(sorted(t.name for t in threading.enumerate() if "hotloop" in t.name))
print(json.dumps([ours, names]))
"""


def test_threads_are_gone_in_a_fork_and_back_after_it(run: Any) -> None:
    from conftest import MODEL  # type: ignore[import-not-found]

    ended = run(SCRIPT + MODEL + LOOP)
    forks, names = ended.last
    assert ended.returncode == 0, ended.err
    assert ended.notes == ""
    assert forks == [[]] * 8
    assert names == [["hotloop-sampler", "hotloop-writer"]] * 4
    assert len(ended.steps) == 48
    assert ended.census.num_samples
