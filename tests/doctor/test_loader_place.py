"""Where the loader that trains is made, told to a trial whose files hold other lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hotloop.core.census import Census, LoaderUse
from hotloop.core.child import LOADER
from hotloop.doctor.training_loader import variables_for

SCRIPT = b"import torch\nx = 1\nloader = make()\nrun(loader)\n"


def use(**changes: Any) -> LoaderUse:
    values: dict[str, Any] = dict.fromkeys(LoaderUse.__slots__)
    values |= {"site": "train.py:3", "trains": True, "num_batches": 9, "wait_s": 0.1}
    return LoaderUse(**{**values, **changes})


def test_lines_follow_the_edits_of_other_fixes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(SCRIPT)
    made = ("train.py:3 < lib.trainer:3 < train.py:4", "train.py:2 #1")
    census = Census(loaders=(use(made=made),))
    told = json.loads(variables_for(census, tmp_path, {})[LOADER])
    assert told == {"site": "train.py:3", "made": list(made), "workdir": str(tmp_path)}
    edited = SCRIPT.replace(b"x = 1", b"torch.set_num_threads(2)\nx = 2").replace(b"run(", b"go(")
    told = json.loads(variables_for(census, tmp_path, {"train.py": edited})[LOADER])
    assert told["made"] == ["train.py:4 < lib.trainer:3 < train.py:5", "train.py:2 #1"]


def test_the_slowest_of_those_that_train_is_told(tmp_path: Path) -> None:
    loaders = (
        use(made=("a.py:1",), wait_s=0.2, trains=False),
        use(made=("a.py:2",)),
        use(made=("a.py:3",), wait_s=0.3),
    )
    told = json.loads(variables_for(Census(loaders=loaders), tmp_path, {})[LOADER])
    assert told["made"] == ["a.py:3"]
    assert variables_for(Census(loaders=(use(),)), tmp_path, {}) == {}
    assert variables_for(None, tmp_path, {}) == {}
