"""What the fuzzers change: a prepared directory, a run that can be continued, and a doctor's run."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal, Union

import yaml
from warm import Warm

CONFIG: dict[str, Any] = {
    "data": {"prepared": "prepared", "order": "shuffled"},
    "model": {"layers": 1, "width": 16, "heads": 2, "context": 16},
    "optimizer": {"learning_rate": 0.001},
    "schedule": {"warmup_steps": 1},
    "train": {"steps": 8, "microbatch": 2, "compile": False, "num_threads": 1},
    "averaging": {"name": "ema", "every_steps": 1},
    "stability": {"nonfinite": "skip"},
    "eval": {"every_steps": 4, "windows": 2},
    "checkpoint": {"every_steps": 3},
    "logging": {"tensorboard": False},
}

SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(40):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def sample_of(kind: Any) -> Any:
    """A value of a type, every field of a dataclass filled."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=False)
        values = {each.name: sample_of(hints[each.name]) for each in dataclasses.fields(kind)}
        if "schema" in values:
            values["schema"] = next(
                f for f in dataclasses.fields(kind) if f.name == "schema"
            ).default
        return values
    if origin is Literal:
        return inner[0]
    if origin in (Union, types.UnionType):
        return sample_of(next(each for each in inner if each is not type(None)))
    if origin in (tuple, list, frozenset) or kind in (tuple, list):
        return [sample_of(each) for each in inner if each is not Ellipsis]
    if origin is not None and issubclass(origin, typing.cast(type, typing.Mapping).__origin__):  # type: ignore[attr-defined]
        return {sample_of(inner[0]): sample_of(inner[1])}
    return {str: "forward", int: 3, float: 1.5, bool: True}.get(kind, "x")


NAMES = ("prepared", "run", "doctor", "treated", "trials")
"""`treated`: a doctor's run with a ledger. `trials`: the processes of a comparison."""


class Ground:
    """Directories to copy and to change; made once."""

    def __init__(self, warm: Warm, root: Path) -> None:
        self.warm, self.root = warm, root
        self._number = 0
        self._prepare()
        self._train()
        self._examine()
        self._compare()

    def fresh(self, name: str) -> Path:
        """A copy of one of `NAMES` in a directory of its own; see `forget`."""
        self._number += 1
        place = self.root / f"case-{self._number}"
        shutil.copytree(self.root / name, place / name, symlinks=True)
        return place / name

    def forget(self, copy: Path) -> None:
        shutil.rmtree(copy.parent, ignore_errors=True)

    def _must(self, *arguments: object) -> None:
        ended = self.warm.run(*arguments, directory=self.root, learn=True)
        assert ended.code == 0, ended

    def _prepare(self) -> None:
        texts = self.root / "texts"
        texts.mkdir()
        for number in range(8):
            (texts / f"{number}.txt").write_text(f"the loop {number} reads a batch, " * 12)
        self._must("prepare", texts, "--out", "prepared", "--tokenizer", "train:280",
                   "--validation-fraction", "0.3", "--workers", "1")  # fmt: skip
        self._must("prepare", "--verify", "prepared")

    def _train(self) -> None:
        """A run that has two of its eight steps still to make."""
        self.config = copy.deepcopy(CONFIG)
        self.config["data"]["prepared"] = str(self.root / "prepared")
        (self.root / "config.yaml").write_text(yaml.safe_dump(self.config))
        self._must("train", "config.yaml", "--out", "run")
        for command in (["generate", "run", "--tokens", "2"], ["monitor", "run", "--once"],
                        ["report", "run", "--html", "page.html"],
                        ["export", "run", "--no-verify", "--out", "exported"]):  # fmt: skip
            self._must(*command)
        shutil.rmtree(next((self.root / "run" / "checkpoints").glob("step-00000008-*")))
        trained = self.fresh("run")
        self._must("train", "config.yaml", "--out", trained)  # what continuing imports
        self.forget(trained)
        (self.root / "run" / "rollbacks.jsonl").write_text(
            '{"step": 4, "back_to": 3, "lost_steps": 1, "lost_s": 0.5, "why": "a spike"}\n'
        )

    def _examine(self) -> None:
        (self.root / "train.py").write_text(SCRIPT)
        self.command = (sys.executable, "train.py")
        self._must("doctor", "--no-try", "--out", "doctor", "--", *self.command)
        self._must("monitor", "doctor", "--once")

    def _compare(self) -> None:
        """Files of stages that take minutes to make, with a value in every field."""
        from hotloop.core.judgement import Verdict
        from hotloop.core.ledger import Ledger

        place = self.root / "treated"
        shutil.copytree(self.root / "doctor", place)
        (place / "ledger.json").write_text(json.dumps(sample_of(Ledger)))
        compared = self.root / "trials"
        compared.mkdir()
        measured = (place / "measurement.json").read_bytes()
        arms = {role: {"name": role} for role in ("baseline", "candidate")}
        plan = {"schema": "hotloop.plan/1", **arms}
        plan["plan"] = {"seed": 1, "aa_pairs": 1, "looks": [2, 4], "block_steps": 5}
        (compared / "plan.json").write_text(json.dumps(plan))
        for name in ("aa-01-a-baseline", "pair-01-a-baseline", "pair-01-b-candidate"):
            (compared / name).mkdir()
            (compared / name / "measurement.json").write_bytes(measured)
        (compared / "verdict.json").write_text(json.dumps(sample_of(Verdict)))
        (compared / "quickstart.json").write_text(
            '{"trained": {"settings": "plain", "sample": "x"}, "compile_s": 1.5, '
            '"steps_until_compile_pays": 9, "host_peak_bytes": 1000}'
        )
