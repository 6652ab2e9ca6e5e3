"""The fuzzers: which inputs there are, and which commands read them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from changes import CHANGES, RAW, VALUE_CHANGES, VALUES, Change, apply, files_of, reseal
from ground import Ground
from hypothesis import strategies as st
from warm import Ended

from hotloop.core.config import known_keys, set_dotted


@dataclass(frozen=True)
class Fuzzer:
    """One kind of input."""

    cases: st.SearchStrategy[Any]
    run: Callable[[Ground, Any], Ended]
    examples: int
    """In the tests; an hour makes some thousands."""


@dataclass(frozen=True)
class Changed:
    """Changes of some files of a directory, and the command that reads it."""

    changes: tuple[tuple[int, Change], ...]
    command: str
    sealed: bool = True


@dataclass(frozen=True)
class Config:
    values: tuple[tuple[str, Any], ...]
    as_json: bool
    changes: tuple[Change, ...]
    overrides: tuple[tuple[str, str], ...]


def _some(changes: st.SearchStrategy[Change]) -> st.SearchStrategy[Any]:
    pair = st.tuples(st.integers(0, 1000), changes)
    return st.lists(pair, min_size=1, max_size=3).map(tuple)


def _changed(commands: list[str], changes: st.SearchStrategy[Change] = CHANGES) -> Any:
    sealed = st.sampled_from([True, True, True, False])
    return st.builds(Changed, _some(changes), st.sampled_from(commands), sealed)


def _apply_all(case: Changed, files: list[Path]) -> None:
    for number, change in case.changes:
        path = files[number % len(files)]
        if path.is_file() and not path.is_symlink() and path.stat().st_size:
            try:
                apply(change, path)
            except (ValueError, AttributeError, KeyError, TypeError, RuntimeError, yaml.YAMLError):
                path.write_bytes(
                    path.read_bytes()[1:]
                )  # changed before, and not of its kind any more


# Values that would only cost time: a whole disk or the network to read, a compiler to run.
_SLOW = {
    "train.compile": [True, "auto"],
    "logging.wandb": [True, "offline"],
    "logging.mlflow": [True],
}
_SIZES = ("model.", "train.microbatch", "train.grad_accum_steps", "data.shuffle_buffer")
_WORDS = st.sampled_from(
    [
        "llama",
        "rmsnorm",
        "rotary",
        "swiglu",
        "relu2",
        "pack",
        "bucket",
        "sequential",
        "muon",
        "sgd",
        "wsd",
        "onecycle",
        "constant",
        "tail",
        "skip",
        "rollback",
        "fp16",
        "bf16",
        "plain",
        "auto",
        "bytes",
        "train:300",
        "train:x",
        "texts",
        "size",
        "cpu",
        "cuda:9",
        "fused",
        "keep",
        "csv",
    ]
)
_KEYS = st.sampled_from(
    [*known_keys(), "train", "data", "data.reading", "origins", "digest", "x.y"]
)


def _is_quick(pair: tuple[str, Any]) -> bool:
    key, value = pair
    if isinstance(value, str) and any(each in value for each in "/~*:\0" if value != "train:300"):
        return False
    if key.startswith(_SIZES) and isinstance(value, int) and 300 < value < 2**31:
        return False
    return not any(value is each or value == each for each in _SLOW.get(key, ()))


_VALUES = st.tuples(_KEYS, st.one_of(VALUES, _WORDS)).filter(_is_quick)
_TEXTS = st.one_of(
    st.tuples(_KEYS, st.sampled_from(RAW)),
    _VALUES.map(lambda pair: (pair[0], json.dumps(pair[1]))),
    st.tuples(
        _KEYS, st.text(st.characters(codec="utf-8", exclude_characters="/~*:\0"), max_size=30)
    ),
).filter(
    lambda pair: pair[0] not in _SLOW or pair[1] not in ("true", "on", "yes", "auto", "offline")
)
CONFIGS = st.builds(
    Config,
    st.lists(_VALUES, max_size=2).map(tuple),
    st.booleans(),
    st.one_of(st.just(()), st.just(()), st.tuples(CHANGES)),
    st.one_of(st.just(()), st.lists(_TEXTS, max_size=2).map(tuple)),
)


def run_config(ground: Ground, case: Config) -> Ended:
    copied = ground.fresh("texts")
    try:
        values = copy.deepcopy(ground.config)
        for key, value in case.values:
            set_dotted(values, key, value)
        path = copied.parent / "fuzzed.yaml"
        path.write_text(json.dumps(values) if case.as_json else yaml.safe_dump(values))
        numbered = Changed(tuple((0, change) for change in case.changes), "train")
        _apply_all(numbered, [path])
        flags = [f"{key}={text}" for key, text in case.overrides]
        if path.is_file() and b"compile" not in path.read_bytes():  # a compiler takes minutes
            flags.append("train.compile=false")
        arguments = ["train", path.name, "--out", "run", "--stop-after", "1", "--", *flags]
        return ground.warm.run(*arguments, directory=copied.parent)
    finally:
        ground.forget(copied)


def run_checkpoint(ground: Ground, case: Changed) -> Ended:
    copied = ground.fresh("run")
    try:
        newest = max((copied / "checkpoints").iterdir())
        _apply_all(case, files_of(newest))
        if case.sealed:
            reseal(newest)
        return _use(ground, copied, case.command)
    finally:
        ground.forget(copied)


def _directory(name: str) -> Callable[[Ground, Changed], Ended]:
    def run(ground: Ground, case: Changed) -> Ended:
        copied = ground.fresh(name)
        try:
            _apply_all(case, [path for path in files_of(copied) if "checkpoints" not in path.parts])
            return _use(ground, copied, case.command)
        finally:
            ground.forget(copied)

    return run


def run_prepared(ground: Ground, case: Changed) -> Ended:
    copied = ground.fresh("prepared")
    try:
        _apply_all(case, files_of(copied))
        if case.sealed:
            _reseal_manifest(copied / "manifest.json")
        return _use(ground, copied, case.command)
    finally:
        ground.forget(copied)


def _reseal_manifest(path: Path) -> None:
    from hotloop.core.errors import UsageError
    from hotloop.core.files import read_json, write_json
    from hotloop.data.manifest import Manifest, sealed

    try:
        write_json(path, sealed(read_json(path, Manifest)))
    except (UsageError, OSError, ValueError, TypeError):  # not a manifest any more
        return


def _use(ground: Ground, place: Path, command: str) -> Ended:
    """A command on the directory, run beside it."""
    out = place.parent / "out"
    arguments: dict[str, list[object]] = {
        "train": ["train", ground.root / "config.yaml", "--out", place],
        "train on": ["train", ground.root / "config.yaml", "--out", out, "--stop-after", "1",
                     f"data.prepared={place}"],
        "generate": ["generate", place, "--tokens", "3", "--prompt", "the"],
        "generate last": ["generate", place, "--tokens", "2", "--weights", "last", "--temperature", "0"],
        "export": ["export", place, "--no-verify", "--out", out],
        "report": ["report", place, "--html", out / "page.html"],
        "report json": ["report", place, "--json", "-"],
        "monitor": ["monitor", place, "--once"],
        "monitor json": ["monitor", place, "--json", "-"],
        "verify": ["prepare", "--verify", place],
        "doctor": ["doctor", "--out", place, "--budget", "1s", "--", *ground.command],
    }  # fmt: skip
    directory = ground.root if command == "doctor" else place.parent
    return ground.warm.run(*arguments[command], directory=directory)


_READ = ["report", "report json", "monitor", "monitor json"]
FUZZERS = {
    "configs": Fuzzer(CONFIGS, run_config, 60),
    "checkpoints": Fuzzer(
        _changed(["train", "train", "generate", "generate last", "export"]), run_checkpoint, 50
    ),
    "runs": Fuzzer(_changed([*_READ, "generate", "train", "export"]), _directory("run"), 40),
    "doctor's runs": Fuzzer(_changed([*_READ, "doctor", "doctor"]), _directory("doctor"), 40),
    "ledgers": Fuzzer(_changed(_READ, VALUE_CHANGES), _directory("treated"), 20),
    "comparisons": Fuzzer(_changed(_READ), _directory("trials"), 25),
    "prepared directories": Fuzzer(_changed(["verify", "train on"]), run_prepared, 25),
}
