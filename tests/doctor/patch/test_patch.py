"""Scripts that ran with live forms: the patch does there what was measured, applied by git and by patch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loader_uses import loader_use, seen_at

from hotloop.api.run import Run
from hotloop.core.census import Census
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json
from hotloop.core.ledger import LEDGER_FILE, Ledger
from hotloop.doctor.patch.keywords import option_of_command
from hotloop.doctor.patch.write import apply_patch
from hotloop.optimizations.loader_workers import LOADER_WORKERS
from hotloop.optimizations.source_edit import Keywords

Try = Callable[..., Any]


def golden(name: str) -> str:
    return (Path(__file__).parents[2] / "golden" / "patches" / f"{name}.diff").read_text()


MODEL = """\
import torch
from torch import nn


class GPT(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.embedding = nn.Embedding(n, 32)
        self.head = nn.Linear(32, n)

    def forward(self, x, y=None):
        logits = self.head(self.embedding(x))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
"""

NANO = '''\
"""Trains on one file, like nanoGPT."""

import json
import os

import torch
from model import GPT

# -----------------------------------------------------------------------------
learning_rate = 1e-2
# -----------------------------------------------------------------------------
torch.manual_seed(1)
model = GPT(16)
model.to("cpu")

# optimizer
optimizer = torch.optim.AdamW(
    model.parameters(),
    lr=learning_rate,
    betas=(0.9, 0.95),  # as in the paper
)


@torch.no_grad()
def estimate_loss():
    model.eval()
    _, loss = model(*get_batch())
    model.train()
    return loss.item()


def get_batch():
    return torch.randint(0, 16, (8, 4)), torch.randint(0, 16, (8, 4))


losses = []
iter_num = 0
# training loop
while True:
    if iter_num == 3:
        losses.append(estimate_loss())
    X, Y = get_batch()
    logits, loss = model(X, Y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    iter_num += 1
    if iter_num > 5:
        break
print(json.dumps(losses))
'''


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    "program", [("git", "apply"), ("patch", "-p1", "--fuzz=0")], ids=["git", "patch"]
)
def test_script_like_nanogpt_learns_after_the_patch_what_was_verified(
    tried: Try, run_script: Callable[..., object], program: tuple[str, ...]
) -> None:
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not installed")
    files = {"train.py": NANO, "model.py": MODEL}
    found = tried(files, {"fused_optimizer": True, "precision": "bf16"})
    plain = run_script(found.workdir, "train.py")
    assert found.diff() == golden("nanogpt")
    assert (found.workdir / "train.py").read_text() == NANO  # ours is the diff alone
    assert plain != found.printed
    found.apply(program)
    # All of it to the bit, the pass without gradients too.
    assert run_script(found.workdir, "train.py") == found.printed


MINGPT = {
    "mingpt/__init__.py": "",
    "mingpt/model.py": MODEL
    + """
    def configure_optimizers(self, train_config):
        optim_groups = [{"params": list(self.parameters()), "weight_decay": 0.1}]
        optimizer = torch.optim.AdamW(optim_groups, lr=train_config.learning_rate, betas=(0.9, 0.95))
        return optimizer
""",
    "mingpt/trainer.py": """\
from torch.utils.data.dataloader import DataLoader

class Trainer:

    def __init__(self, config, model, train_dataset):
        self.config = config
        self.model = model
        self.train_dataset = train_dataset

    def run(self):
        model, config = self.model, self.config

        # setup the dataloader
        train_loader = DataLoader(
            self.train_dataset,
            shuffle=False,
            pin_memory=False,
            batch_size=config.batch_size,
            num_workers=config.num_workers,
        )

        self.optimizer = model.configure_optimizers(config)
        model.train()
        self.losses = []
        data_iter = iter(train_loader)
        while True:

            # fetch the next batch (x, y) and re-init iterator if needed
            try:
                x, y = next(data_iter)
            except StopIteration:
                break
            # forward the model
            logits, self.loss = model(x, y)
            model.zero_grad(set_to_none=True)
            self.loss.backward()
            self.optimizer.step()
            self.losses.append(self.loss.item())
""",
    "projects/adder/adder.py": """\
import json
import os
import sys
import types

import torch
from torch.utils.data import TensorDataset

sys.path.insert(0, os.getcwd())
from mingpt.model import GPT
from mingpt.trainer import Trainer

if __name__ == '__main__':
    torch.manual_seed(3)
    data = TensorDataset(torch.randint(0, 16, (24, 4)), torch.randint(0, 16, (24, 4)))
    config = types.SimpleNamespace(learning_rate=1e-2, batch_size=4, num_workers=0)
    trainer = Trainer(config, GPT(16), data)
    trainer.run()
    print(json.dumps([trainer.losses, trainer.optimizer.defaults["fused"]]))
""",
}


@pytest.mark.slow
def test_package_like_mingpt_is_patched_where_its_calls_are(
    tried: Try, run_script: Callable[..., object]
) -> None:
    found = tried(MINGPT, {"fused_optimizer": True, "compile": True}, "projects/adder/adder.py")
    assert found.diff() == golden("mingpt")
    found.apply()
    losses, fused = run_script(found.workdir, "projects/adder/adder.py")  # type: ignore[misc]
    assert fused is True
    assert losses == pytest.approx(found.printed[0], rel=1e-5)


@pytest.mark.parametrize(("epochs", "draws"), [(1, False), (2, False), (2, True)])
def test_workers_are_written_where_the_loader_is_made(tried: Try, epochs: int, draws: bool) -> None:
    trainer = MINGPT["mingpt/trainer.py"].replace("=config.num_workers", "=4")
    files = {**MINGPT, "mingpt/trainer.py": trainer}
    found = tried(files, {"fused_optimizer": True}, "projects/adder/adder.py")
    (entry,) = found.ledger.fixes
    trials = found.directory / "trials"
    for path in trials.rglob("fixes.jsonl"):
        path.write_text(path.read_text().replace("fused_optimizer", "loader_workers"))
    entry = replace(entry, name="loader_workers", value=2)
    found.ledger = replace(found.ledger, fixes=(entry,), kept=("loader_workers",))
    line = MINGPT["mingpt/trainer.py"].split("\n").index("        train_loader = DataLoader(") + 1
    found.census = Census(
        loaders=(
            loader_use(f"mingpt/trainer.py:{line}", epochs=epochs, draws=draws),
            loader_use("mingpt/model.py:3", trains=False),
        )
    )
    changed = [line for line in found.diff().split("\n")[2:] if line[:1] in ("+", "-")]
    assert changed == [
        "-            num_workers=4,",
        "+            num_workers=2,",
    ]
    (fix,) = found.write().fixes
    said = fix.patch_text or ""
    assert said.startswith(f"mingpt/trainer.py:{line}")
    assert ("its workers start again with each epoch" in said) == (epochs > 1)
    assert ("`persistent_workers=True` may be added by hand where" in said) == (epochs > 1)
    assert ("the same samples, augmented with others, as with another seed" in said) == draws


MAKES_LOADERS = """\
import json
import torch
from torch.utils.data import DataLoader

torch.manual_seed(0)

def make_loader(n, shuffle):
    return DataLoader(torch.utils.data.TensorDataset(torch.randn(n, 4)), 2, shuffle=shuffle)

train, check = make_loader(24, True), make_loader(6, False)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for epoch in range(2):
    for (x,) in train:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(json.dumps(losses))
"""


@pytest.mark.parametrize("validates", [False, True])
def test_function_that_makes_every_loader_is_words(
    tried: Try, validates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_at(monkeypatch, "train.py:8 < train.py:10 #0")
    found = tried({"train.py": MAKES_LOADERS}, {"loader_workers": 2})
    loaders = [loader_use("train.py:8", epochs=2)]
    if validates:
        loaders.append(loader_use("train.py:8", trains=False))
    found.census = Census(loaders=tuple(loaders))
    (fix,) = found.write().fixes
    assert fix.patch == ("words" if validates else "edited")
    assert found.target.exists() != validates
    if validates:
        assert "at train.py:8 loaders are made that do not train, too" in (fix.patch_text or "")


TAKES_AN_OPTION = MAKES_LOADERS.replace(
    "import json\n",
    "import argparse\nimport json\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--lr', type=float)\nparser.add_argument('--num-workers', default=0)\n"
    "args = parser.parse_args()\n",
).replace("shuffle=shuffle", "shuffle=shuffle, num_workers=args.num_workers")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            TAKES_AN_OPTION,
            "give `--num-workers=2` to the command. Not edited: at train.py:13 loaders",
        ),
        (TAKES_AN_OPTION.replace("'--num-", "'-w', '--num-"), "give `--num-workers=2` to the"),
        (
            TAKES_AN_OPTION.replace("'--num-workers'", "'-w', dest='num_workers'"),
            "add `num_workers=",
        ),
        (
            TAKES_AN_OPTION.replace("default=0)", "default=0, action='store_true')"),
            "add `num_workers=",  # a switch takes no value
        ),
        (
            TAKES_AN_OPTION.replace("=args.num_workers", "=int(args.num_workers)"),
            "add `num_workers=",
        ),
    ],
)
def test_an_option_that_the_loader_is_given_is_named_instead_of_an_edit(
    tried: Try, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    seen_at(monkeypatch, "train.py:13 < train.py:15 #0")
    found = tried({"train.py": script}, {"loader_workers": 2})
    loaders = (loader_use("train.py:13"), loader_use("train.py:13", trains=False))
    found.census = Census(loaders=loaders)
    (fix,) = found.write().fixes
    assert fix.patch == "words"
    assert said in (fix.patch_text or "")


def test_no_option_is_named_where_another_argument_has_to_change_with_it(tmp_path: Path) -> None:
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "folder.py").mkdir()
    site, now = Census(loaders=(loader_use("train.py:13"),)), time.time() + 1
    for more, option in (("", "--num-workers=0"), (", persistent_workers=True", None)):
        script = TAKES_AN_OPTION.replace("=args.num_workers", f"=args.num_workers{more}")
        (tmp_path / "train.py").write_text(script)
        wanted = _workers(0)
        assert option_of_command(wanted, site, tmp_path, now) == option


def _workers(number: int) -> Keywords:
    assert LOADER_WORKERS.source_edit is not None
    wanted = LOADER_WORKERS.source_edit(number, {})
    assert isinstance(wanted, Keywords)
    return wanted


CHANGES_ITS_DATASET = """\
import json
import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)

class Points(Dataset):
    def __init__(self):
        self.x, self.epoch = torch.randn(24, 4), 0
    def __len__(self):
        return 24
    def __getitem__(self, i):
        return self.x[i] + self.epoch
    def set_epoch(self, epoch):
        self.epoch = epoch

loader = DataLoader(Points(), 3, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for epoch in range(3):
    loader.dataset.set_epoch(epoch)
    for x in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(json.dumps(losses))
"""


def test_dataset_that_the_script_changes_learns_the_same_after_the_patch(
    tried: Try, run_script: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_at(monkeypatch, "train.py:17")
    found = tried({"train.py": CHANGES_ITS_DATASET}, {"loader_workers": 2})
    plain = run_script(found.workdir, "train.py")
    assert plain == found.printed
    found.census = Census(loaders=(loader_use("train.py:17", epochs=3),))
    found.diff()
    found.apply()
    assert "num_workers=2" in (found.workdir / "train.py").read_text()
    assert run_script(found.workdir, "train.py") == plain


def test_a_longer_queue_is_written_where_the_loader_is_made(
    tried: Try, run_script: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_at(monkeypatch, "train.py:17")
    with_workers = CHANGES_ITS_DATASET.replace("shuffle=True", "shuffle=True, num_workers=1")
    found = tried({"train.py": with_workers}, {"prefetch": 6})
    found.census = Census(loaders=(loader_use("train.py:17", epochs=3),))
    changed = [line for line in found.diff().split("\n")[2:] if line[:1] in ("+", "-")]
    assert changed == [
        "-loader = DataLoader(Points(), 3, shuffle=True, num_workers=1)",
        "+loader = DataLoader(Points(), 3, shuffle=True, num_workers=1, prefetch_factor=6)",
    ]
    found.apply()
    assert run_script(found.workdir, "train.py") == found.printed


TRAINER = """\
import json
import torch
from library import Trainer

torch.manual_seed(0)
trainer = Trainer(torch.nn.Linear(4, 4))
trainer.train()
print(json.dumps(trainer.losses))
"""
LIBRARY = """\
import torch

class Trainer:
    def __init__(self, model):
        self.model = model
        self.losses = []

    def train(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for _ in range(3):
            loss = self.model(torch.randn(2, 4)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
"""


@pytest.mark.slow
def test_what_a_library_calls_is_said_in_words(tried: Try, tmp_path: Path) -> None:
    place = Path("venv/lib/site-packages/transformers")
    files = {
        "train.py": TRAINER.replace(
            "from library",
            "import sys; sys.path.insert(0, 'venv/lib/site-packages')\nfrom transformers.trainer",
        ),
        str(place / "__init__.py"): "",
        str(place / "trainer.py"): LIBRARY,
    }
    found = tried(files, {"fused_optimizer": True, "precision": "bf16", "compile": True})
    ledger = found.write()
    assert not found.target.exists()
    assert ledger.diff is None
    assert [fix.patch for fix in ledger.fixes] == ["words"] * 3
    fused, bf16, compiled = [fix.patch_text or "" for fix in ledger.fixes]
    assert fused == (
        'at train.py:8: the Trainer does it: add `optim="adamw_torch_fused"` to its TrainingArguments. '
        "Not edited: the call is made inside a library (transformers.trainer.train)."
    )
    assert "`bf16=True`" in bf16
    assert "torch.compile(model)" in compiled  # a Linear of torch's own


ANOMALY = """\
import json
import torch

MODE
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    with BLOCK:
        loss = model(torch.randn(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses, torch.is_anomaly_enabled()]))
"""


def test_anomaly_detection_is_turned_off_where_it_was_turned_on(
    tried: Try, run_script: Callable[..., Any]
) -> None:
    text = ANOMALY.replace("MODE", "torch.autograd.set_detect_anomaly(True, check_nan=True)")
    found = tried(
        {"train.py": text.replace("BLOCK", "torch.enable_grad()")}, {"anomaly_mode": False}
    )
    assert "+torch.autograd.set_detect_anomaly(False, check_nan=True)" in found.diff()
    found.apply()
    assert run_script(found.workdir, "train.py") == found.printed
    assert found.printed[1] is False


def test_block_for_which_it_was_turned_on_is_edited(tried: Try) -> None:
    text = ANOMALY.replace("MODE", "").replace("BLOCK", "torch.autograd.set_detect_anomaly(True)")
    found = tried({"train.py": text}, {"anomaly_mode": False})
    assert "+    with torch.autograd.set_detect_anomaly(False):" in found.diff()


def test_block_that_detects_anomalies_is_words(tried: Try) -> None:
    text = ANOMALY.replace("MODE", "").replace("BLOCK", "torch.autograd.detect_anomaly()")
    found = tried({"train.py": text}, {"anomaly_mode": False})
    (fix,) = found.write().fixes
    assert fix.patch == "words"
    assert "take the block out of its `with`" in (fix.patch_text or "")
    assert "train.py:10" in (fix.patch_text or "")


WRAPPED = """\
import json
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 4), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    loss = model(torch.randn(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses, model.find_unused_parameters, model.gradient_as_bucket_view]))
torch.distributed.destroy_process_group()
"""


def test_settings_of_ddp_are_written_where_the_model_is_wrapped(
    tried: Try, run_script: Callable[..., Any]
) -> None:
    found = tried({"train.py": WRAPPED}, {"ddp_unused_search": False, "ddp_bucket_view": True})
    keywords = "find_unused_parameters=False, gradient_as_bucket_view=True"
    assert f"+model = DDP(torch.nn.Linear(4, 4), {keywords})" in found.diff()
    found.apply()
    assert run_script(found.workdir, "train.py") == found.printed
    assert found.printed[1:] == [False, True]


TEACHER = """\
import json
import torch

torch.manual_seed(0)
student, teacher = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

def run(net, x):
    return net(x)

losses = []
for _ in range(3):
    x = torch.randn(2, 4)
    loss = (run(student, x) - run(teacher, x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
"""


@pytest.mark.parametrize("before", ["", "teacher(torch.randn(2, 4))"])
def test_call_that_serves_a_frozen_model_too_is_words(tried: Try, before: str) -> None:
    """Also where that model was called from another place before."""
    script = TEACHER.replace("losses = []", f"losses = []\n{before}")
    found = tried({"train.py": script}, {"precision": "bf16"})
    (fix,) = found.write().fixes
    assert fix.patch == "words"
    assert "at train.py:9 it took effect at one time and could not at another" in (
        fix.patch_text or ""
    )
    assert not found.target.exists()


UNSAFE = """\
import json
import torch
extra = dict(weight_decay=0.0)
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters(), **extra)

def step(model, x):
    return model(x).square().mean()

losses = []
for _ in range(3):
    loss = step(model, torch.randn(2, 4))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
"""


def test_unsafe_one_is_words_and_the_others_are_edited(
    tried: Try, run_script: Callable[..., object]
) -> None:
    found = tried({"train.py": UNSAFE}, {"fused_optimizer": True, "precision": "bf16"})
    ledger = found.write()
    assert [fix.patch for fix in ledger.fixes] == ["words", "edited"]
    assert ledger.fixes[0].patch_text == (
        "at train.py:6: add `fused=True`. Not edited: `**extra` may hold `fused` already."
    )
    assert ledger == read_json(found.directory / LEDGER_FILE, Ledger)
    assert ledger.diff == str(found.target)
    found.apply()
    assert "return in_bf16(model, x).square().mean()" in (found.workdir / "train.py").read_text()
    assert run_script(found.workdir, "train.py") == pytest.approx(found.printed, rel=1e-5)


def test_source_that_changed_since_is_left_alone(tried: Try) -> None:
    found = tried({"train.py": UNSAFE}, {"precision": "bf16"})
    (found.workdir / "train.py").write_text("# new\n" + UNSAFE)
    (fix,) = found.write().fixes
    assert fix.patch == "words"
    assert "the file has changed since it was run" in (fix.patch_text or "")
    assert not found.target.exists()


@pytest.mark.parametrize(
    ("confirmed", "why"),
    [("", "the edited files were not run"), ("ab" * 32, "it would not be what was tried")],
)
def test_what_was_not_run_is_not_written(tried: Try, confirmed: str, why: str) -> None:
    found = tried({"train.py": UNSAFE}, {"precision": "bf16"})
    found.confirmed = confirmed
    ledger = found.write()
    assert ledger.diff is None
    assert not found.target.exists()
    (fix,) = ledger.fixes
    assert fix.patch == "words"
    assert (fix.patch_text or "").startswith("at train.py:9: call the model under")
    assert why in (fix.patch_text or "")


def test_source_that_may_not_be_written_is_left_alone(
    tried: Try, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tried({"train.py": UNSAFE}, {"precision": "bf16"})
    monkeypatch.setattr(
        "os.access", lambda path, mode: False
    )  # root may write whatever its mode says
    (fix,) = found.write().fixes
    assert fix.patch == "words"
    assert "may not be written" in (fix.patch_text or "")


def test_nothing_kept_writes_nothing(tried: Try) -> None:
    found = tried({"train.py": UNSAFE}, {"precision": "bf16"})
    found.ledger = replace(
        found.ledger, kept=(), fixes=(replace(found.ledger.fixes[0], status="rejected"),)
    )
    ledger = found.write()
    assert not found.target.exists()
    assert [fix.patch for fix in ledger.fixes] == [None]


DETECTS = ANOMALY.replace("MODE", "").replace("BLOCK", "torch.autograd.set_detect_anomaly(True)")


def test_patch_is_applied_in_place_and_undone_by_its_diff(tried: Try, tmp_path: Path) -> None:
    found = tried({"real.py": DETECTS}, {"anomaly_mode": False}, "real.py")
    file = found.workdir / "real.py"
    file.chmod(0o750)
    _, patch = found.patch()
    apply_patch(patch, found.workdir, tmp_path / "unpatched")
    assert file.read_bytes() == patch.files["real.py"] != DETECTS.encode()
    assert file.stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "unpatched" / "real.py").read_text() == DETECTS
    found.apply(("git", "apply", "-R"))
    assert file.read_text() == DETECTS


def test_a_program_applies_what_was_kept_once_and_only_to_what_was_examined(tried: Try) -> None:
    found = tried({"train.py": DETECTS}, {"anomaly_mode": False})
    found.write()
    run, file = Run(found.directory), found.workdir / "train.py"
    file.write_text(f"# new\n{DETECTS}")
    with pytest.raises(UsageError, match=r"train\.py changed after the command was examined") as raised:  # fmt: skip
        run.apply()
    assert "Not edited: the file has changed since it was run" in (raised.value.do or "")
    assert file.read_text() == f"# new\n{DETECTS}"
    file.write_text(DETECTS)
    assert run.apply() == (file,)
    assert file.read_text() != DETECTS
    assert (found.directory / "unpatched/train.py").read_text() == DETECTS
    with pytest.raises(UsageError, match="the patch is applied already"):
        run.apply()
    found.apply(("git", "apply", "-R"))  # it did what the diff says
    assert file.read_text() == DETECTS


def test_a_program_that_applies_nothing_hears_why(tried: Try) -> None:
    found = tried({"train.py": UNSAFE}, {"precision": "bf16"})
    found.confirmed = ""  # no file of the script was edited where it was confirmed
    found.write()
    with pytest.raises(UsageError, match="none of what was kept is safe to edit") as raised:
        Run(found.directory).apply()
    assert (raised.value.do or "").startswith("precision: at train.py:")
    found.ledger = replace(found.ledger, kept=())
    found.write()
    with pytest.raises(UsageError, match="no fix was kept"):
        Run(found.directory).apply()


def test_where_a_script_is_a_link_the_file_behind_it_is_edited(tried: Try, tmp_path: Path) -> None:
    found = tried({"train.py": DETECTS}, {"anomaly_mode": False})
    _, patch = found.patch()
    (found.workdir / "train.py").rename(tmp_path / "elsewhere.py")
    (found.workdir / "train.py").symlink_to(tmp_path / "elsewhere.py")
    apply_patch(patch, found.workdir, tmp_path / "unpatched")
    assert (found.workdir / "train.py").is_symlink()
    assert (tmp_path / "elsewhere.py").read_bytes() == patch.files["train.py"]
