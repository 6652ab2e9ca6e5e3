"""Files written in the background: the same bytes, whole at any instant, and waited for by whoever asks for them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.core.child import APPLIED_FILE
from hotloop.optimizations.background_saves import DEFINITION, NAME

Try = Callable[..., Any]

SCRIPT = """\
import hashlib
import json
import os
import shutil

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
model[2].weight = model[0].weight
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
made = []
os.mkdir("out")


def save(step):
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "part": model[0].weight[1:3].detach()}
    torch.save(state, PATH)
    AFTER
    return sorted(os.listdir("out"))


for step in range(12):
    loss = model(torch.randn(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 2:
        made.append(save(step))
found = {name: hashlib.sha256(open(f"out/{name}", "rb").read()).hexdigest() for name in sorted(os.listdir("out"))}
print(json.dumps([made, found]))
"""
USES = {
    "the same file": ('"out/last.pt"', "pass"),
    "another file each time": ('f"out/{step:03d}.pt"', "pass"),
    "a copy of the best": ('"out/last.pt"', 'shutil.copyfile("out/last.pt", "out/best.pt")'),
    "renamed": ('"out/new.pt"', 'os.replace("out/new.pt", f"out/{step:03d}.pt")'),
    "read back": ('"out/last.pt"', 'model.load_state_dict(torch.load("out/last.pt")["model"])'),
    "the one before removed": (
        'f"out/{step:03d}.pt"',
        'step > 2 and os.remove(f"out/{step - 3:03d}.pt")',
    ),
    "by another program": ('"out/last.pt"', 'os.system("cp out/last.pt out/copied.pt")'),
}


@pytest.mark.parametrize(("path", "after"), USES.values(), ids=USES)
def test_the_patched_script_leaves_the_same_files(
    tried: Try, run_script: Callable[..., Any], path: str, after: str
) -> None:
    script = SCRIPT.replace("PATH", path).replace("AFTER", after)
    found = tried({"train.py": script}, {"background_saves": True})
    plain = run_script(found.workdir, "train.py")
    (found.workdir / "out").rename(found.workdir / "before")
    assert found.printed == plain
    (fix,) = found.write().fixes
    assert fix.patch == "edited", fix.patch_text
    found.apply()
    assert f"{NAME}(torch.save, state, {path})" in (found.workdir / "train.py").read_text()
    assert run_script(found.workdir, "train.py") == plain


LIBRARY = """\
import os
import shutil

import torch

class Trainer:
    def __init__(self, model):
        self.model = model
    def train(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        for step in range(9):
            self.model(torch.ones(4, 64)).square().mean().backward()
            optimizer.step()
            if step % 2:
                folder = f"out/checkpoint-{step}"
                os.makedirs(folder)
                torch.save(optimizer.state_dict(), os.path.join(folder, "optimizer.pt"))
                torch.save({"step": step}, os.path.join(folder, "scheduler.pt"))
                for old in sorted(os.listdir("out"))[:-2]:
                    shutil.rmtree(os.path.join("out", old))
"""
TRAINER = """\
import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, "lib/site-packages")
import torch
from transformers.trainer import Trainer

torch.set_num_threads(1)
torch.manual_seed(0)
trainer = Trainer(torch.nn.Linear(64, 64))
if trainer:
    trainer.train()
print(json.dumps({str(each): hashlib.sha256(each.read_bytes()).hexdigest() for each in sorted(Path("out").glob("*/*"))}))
"""


def test_a_trainer_saves_so_from_when_it_is_started(
    tried: Try, run_script: Callable[..., Any]
) -> None:
    files = {
        "train.py": TRAINER,
        "lib/site-packages/transformers/__init__.py": "",
        "lib/site-packages/transformers/trainer.py": LIBRARY,
    }
    found = tried(files, {"background_saves": True})
    plain = run_script(found.workdir, "train.py")
    assert sorted(plain) == [
        f"out/checkpoint-{step}/{name}.pt" for step in (5, 7) for name in ("optimizer", "scheduler")
    ]
    assert found.printed == plain
    (fix,) = found.write().fixes
    assert fix.patch == "edited", fix.patch_text
    found.apply()
    line = "    torch.save = functools.partial(save_in_background, torch.save)\n    trainer.train()"
    assert line in (found.workdir / "train.py").read_text()
    (found.workdir / "out").rename(found.workdir / "before")
    assert run_script(found.workdir, "train.py") == plain


def said(found: Any) -> list[str]:
    (fix,) = found.write().fixes
    return [str(fix.patch), str(fix.patch_text)]


def test_what_cannot_be_copied_is_saved_as_ever(tried: Try, run_script: Callable[..., Any]) -> None:
    script = SCRIPT.replace("PATH", '"out/last.pt"').replace("AFTER", "pass")
    script = script.replace('"step": step', '"step": step, "loss": model[0].weight * 2')
    found = tried({"train.py": script}, {"background_saves": True})
    assert found.printed == run_script(found.workdir, "train.py")
    assert said(found)[0] == "words"


def test_what_lies_on_a_device_is_not_copied_there(saves: Any, tmp_path: Path) -> None:
    at: list[int] = []
    saves(
        lambda obj, f: at.append(threading.get_ident()),
        {"w": torch.empty(9, device="meta")},
        tmp_path / "w.pt",
    )
    assert at == [threading.get_ident()]


@pytest.fixture
def saves() -> Iterator[Any]:
    scope: dict[str, Any] = {"torch": torch}
    exec(DEFINITION, scope)
    made = scope["background_saves"]()
    yield made
    for job, _ in list(made.pending.values()):
        job.exception()


def files_in(folder: Path) -> list[str]:
    """Waits for those that are written there."""
    return sorted(each.name for each in folder.iterdir())


class Slow:
    """A function that saves, and waits to be let."""

    def __init__(self) -> None:
        self.may, self.begun = threading.Event(), threading.Event()

    def __call__(self, obj: Any, f: Any) -> None:
        self.begun.set()
        assert self.may.wait(60)
        torch.save(obj, f)


def test_the_file_is_the_old_one_until_the_new_one_is_whole(saves: Any, tmp_path: Path) -> None:
    path, state, slow = tmp_path / "last.pt", {"w": torch.zeros(1000)}, Slow()
    saves(torch.save, state, path)
    before = path.read_bytes()
    saves(slow, state, path)
    state["w"].add_(1)  # as the next step does
    assert slow.begun.wait(60)
    with os.scandir(os.open(tmp_path, os.O_RDONLY)) as there:  # by number, which waits for nothing
        assert {each.name[:8] for each in there} == {"last.pt", ".saving-"}
    assert path.stat().st_size == len(before)
    slow.may.set()
    assert not torch.load(path)["w"].any()
    assert files_in(tmp_path) == ["last.pt"]


def test_at_most_twice_the_largest_is_held(saves: Any, tmp_path: Path) -> None:
    state, slow = {"w": torch.zeros(1000)}, Slow()
    for number in range(2):
        saves(slow, state, tmp_path / f"{number}.pt")
    third = threading.Thread(target=saves, args=(slow, state, tmp_path / "2.pt"))
    third.start()
    assert slow.begun.wait(60)
    assert len(saves.pending) == 2
    slow.may.set()
    third.join()
    assert files_in(tmp_path) == ["0.pt", "1.pt", "2.pt"]


def test_a_later_file_of_somebody_else_stays(saves: Any, tmp_path: Path) -> None:
    path, slow = tmp_path / "last.pt", Slow()
    saves(slow, {"w": torch.zeros(1000)}, path)
    torch.save({"w": torch.ones(1000)}, path)  # which no audit hook is told of
    slow.may.set()
    assert torch.load(path)["w"].all()


def test_what_goes_wrong_is_raised_by_who_asks_next(saves: Any, tmp_path: Path) -> None:
    def full(obj: Any, f: Any) -> None:
        raise OSError(28, "No space left on device")

    state = {"w": torch.zeros(1000)}
    saves(torch.save, state, tmp_path / "last.pt")
    (tmp_path / "last.pt").read_bytes()
    saves(full, state, tmp_path / "last.pt")
    with pytest.raises(OSError, match="No space"):
        saves(torch.save, state, tmp_path / "last.pt")
    assert torch.load(tmp_path / "last.pt").keys() == {"w"}
    saves(full, state, tmp_path / "last.pt")
    with pytest.raises(OSError, match="No space"):
        (tmp_path / "last.pt").open("rb")
    assert files_in(tmp_path) == ["last.pt"]
    with pytest.raises(RuntimeError, match="Parent directory"):
        saves(torch.save, state, tmp_path / "none" / "last.pt")


ENDING = """
import os, sys, time, torch
DEFINITION
def slow(obj, f):
    time.sleep(0.5)
    if sys.argv[1] == "fails":
        raise OSError(28, "No space left on device")
    torch.save(obj, f)

save_in_background(slow, {"w": torch.zeros(1000)}, "last.pt")
if sys.argv[1] == "forks" and os.fork() == 0:
    save_in_background(torch.save, {"w": torch.ones(1000)}, "child.pt")
    sys.exit(0)
if sys.argv[1] == "forks":
    os.wait()
if sys.argv[1] == "raises":
    raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("how", "code", "files"),
    [
        ("ends", 0, ["last.pt"]),
        ("raises", 3, ["last.pt"]),
        ("forks", 0, ["child.pt", "last.pt"]),
        ("fails", 1, []),
    ],
)
def test_the_program_ends_when_its_files_are_written(
    tmp_path: Path, how: str, code: int, files: list[str]
) -> None:
    script = ENDING.replace("DEFINITION", DEFINITION)
    done = subprocess.run(
        [sys.executable, "-c", script, how],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert files_in(tmp_path) == files
    assert ("No space left" in done.stderr) == (how == "fails")


def test_a_script_that_asks_whether_its_file_is_there_is_told_wrong(
    tried: Try, run_script: Callable[..., Any]
) -> None:
    script = SCRIPT.replace("PATH", 'f"out/{step}.pt"').replace("AFTER", "SIZE")
    script = script.replace("SIZE", 'made.append(os.path.getsize(f"out/{step}.pt"))')
    script = script.replace('"part"', '"much": [torch.zeros(4_000_000)] * 1, "part"')
    found = tried({"train.py": script}, {"background_saves": True})
    assert len(found.printed[0]) == 8
    lines = (found.directory / "trials").glob(f"*/*/run/{APPLIED_FILE}")
    assert any("while it is written" in line.read_text() for line in lines)
