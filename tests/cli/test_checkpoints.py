"""`hotloop checkpoints`, on a run directory and on what it uploaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from trainings import train, weights

from hotloop.cli.main import run as hotloop
from hotloop.core.file_locks import locked


@pytest.fixture
def trained(tiny_config: Path, tmp_path: Path) -> Path:
    settings = ("checkpoint.every_steps=3", "checkpoint.keep=9", "eval.every_steps=6")
    train(tiny_config, tmp_path / "run", *settings, f"checkpoint.upload=file://{tmp_path}/there")
    return tmp_path / "run"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert hotloop(["checkpoints", *arguments, "--json", "-"]) == code
    return json.loads(capsys.readouterr().out)


def names(root: Path) -> list[str]:
    return sorted(each.name for each in root.iterdir())


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def step_dir(run: Path, step: int) -> Path:
    return next((run / "checkpoints").glob(f"step-{step:08d}-*"))


def test_list_says_what_is_here_what_is_there_and_what_is_neither_whole_nor_gone(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (step_dir(trained, 3) / "manifest.json").unlink()
    (step_dir(trained, 6) / "model.safetensors").write_bytes(b"short")
    moved = step_dir(trained, 9)
    moved.rename(moved.with_name(f"left-{moved.name}"))
    rows = answer(capsys, "list", str(trained))["checkpoints"]
    here = {row["step"]: row for row in rows if row["where"] != ["remote"]}
    assert {step: row["state"] for step, row in here.items()} == {
        3: "half-written",
        6: "damaged",
        9: "set aside",
        12: "whole",
    }
    assert here[12]["where"] == ["local", "remote"]
    assert here[6]["problem"].startswith("model.safetensors has 5 bytes")
    evals = {
        e["step"]: e["loss"]
        for e in map(json.loads, (trained / "evals.jsonl").read_text().splitlines())
    }
    assert here[12]["held_out_loss"] == evals[12]
    assert here[3]["held_out_loss"] is None
    assert hotloop(["checkpoints", "list", str(trained)]) == 0
    assert "local + remote" in capsys.readouterr().out
    there = answer(capsys, "list", f"file://{tmp_path}/there/tiny")["checkpoints"]
    assert {row["state"] for row in there} == {"whole"}
    assert there[-1]["bytes"] == here[12]["bytes"]


def test_list_without_the_place_of_the_uploads_lists_what_is_here(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(tmp_path / "there")
    rows = answer(capsys, "list", str(trained))["checkpoints"]
    assert [row["step"] for row in rows] == [3, 6, 9, 12]
    assert {tuple(row["where"]) for row in rows} == {("local",)}


def test_what_a_manifest_says_cannot_command_the_terminal(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = step_dir(trained, 12) / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"versions": {"hotloop": "\x07"}}))
    assert hotloop(["checkpoints", "show", str(trained), "12"]) == 0
    path.write_text(json.dumps(manifest | {"schema": "\x07"}))
    assert hotloop(["checkpoints", "list", str(trained)]) == 0
    shown = capsys.readouterr().out  # escape sequences alone are left out by click itself
    assert "\x07" not in shown


def test_verify_finds_one_flipped_bit_that_list_does_not_see(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/there/tiny"
    for place, root in ((str(trained), trained / "checkpoints"), (url, tmp_path / "there/tiny")):
        assert answer(capsys, "verify", place)["checkpoints"]
        flip(next(root.glob("step-00000012-*")) / "model.safetensors")
        states = [row["state"] for row in answer(capsys, "list", place)["checkpoints"]]
        assert "damaged" not in states
        rows = answer(capsys, "verify", place, code=1)["checkpoints"]
        assert rows[-1]["state"] == "damaged"
        assert "checksum differs" in rows[-1]["problem"]
        assert [row["state"] for row in rows[:-1]] == ["whole"] * (len(rows) - 1)


def test_show_lists_every_tensor_with_its_shape(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "show", str(trained), "6")
    stored = weights(trained)
    shown = {(t["file"], t["name"]): t["shape"] for t in found["tensors"]}
    expected = {
        (f"{file}.safetensors", name): list(value.shape)
        for file, group in stored.items()
        for name, value in group.items()
    }
    assert shown == expected
    assert set(found["versions"]) == {"hotloop", "torch"}
    assert found["random_states"] == ["python", "random.safetensors: torch"]
    assert found["files"].keys() >= {"model.safetensors", "state.json"}
    assert hotloop(["checkpoints", "show", str(trained), "6"]) == 0
    assert "F32" in capsys.readouterr().out
    assert hotloop(["checkpoints", "show", str(trained), "7"]) == 2
    assert "3, 6, 9, 12" in capsys.readouterr().err


def test_prune_says_what_would_go_and_deletes_only_when_told(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = trained / "checkpoints"
    (root / "left-step-00000002-0123abcd").mkdir()
    (root / "step-00000001-0123abcd").mkdir()
    before = names(root)
    assert hotloop(["checkpoints", "prune", str(trained), "--keep", "2"]) == 0
    assert "would delete step-00000003" in capsys.readouterr().out
    assert names(root) == before
    assert hotloop(["checkpoints", "prune", str(trained), "--keep", "2", "--yes"]) == 0
    assert [name[:13] for name in names(root)] == ["step-00000009", "step-00000012"]
    with locked(trained):
        assert hotloop(["checkpoints", "prune", str(trained)]) == 4


def test_prune_counts_only_what_verifies(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (9, 12):
        flip(step_dir(trained, step) / "model.safetensors")
    assert hotloop(["checkpoints", "prune", str(trained), "--keep", "2", "--yes"]) == 0
    left = [int(name[5:13]) for name in names(trained / "checkpoints")]
    assert left == [3, 6, 9, 12]  # the damaged ones are newer: somebody may mend them
    for step in (3, 6):
        flip(step_dir(trained, step) / "state.json")
    assert hotloop(["checkpoints", "prune", str(trained), "--keep", "2", "--yes"]) == 2
    assert "nothing is deleted" in capsys.readouterr().err
    assert len(names(trained / "checkpoints")) == 4


def test_prune_keeps_what_updates_that_were_all_left_out_may_need(
    trained: Path, tiny_config: Path
) -> None:
    from hotloop.checkpoint import store

    newest = store.of_step(trained / "checkpoints", 12)
    tensors, state = store.load(newest, ("model", "optimizer", "random"))
    state["stability"]["skipped_in_a_row"] = 5
    store.remove(newest.path)
    store.save(trained / "checkpoints", 12, tensors=tensors, state=state, keep=9)
    assert hotloop(["checkpoints", "prune", str(trained), "--keep", "2", "--yes"]) == 0
    assert store.steps(trained / "checkpoints") == (3, 6, 12)  # good until 7


def test_export_of_a_step_is_its_weights(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = safetensors.torch.load_file(step_dir(trained, 6) / "model.safetensors")
    out = tmp_path / "six.safetensors"
    command = ["checkpoints", "export", str(trained), "6", "--out"]
    assert hotloop([*command, str(out)]) == 0
    written = safetensors.torch.load_file(out)
    assert written.keys() == stored.keys()
    assert all(written[name].equal(stored[name]) for name in stored)
    assert hotloop([*command, str(out)]) == 2
    assert hotloop([*command, str(tmp_path / "hf")]) == 0
    assert (tmp_path / "hf" / "config.json").exists()
    assert "exported step 6" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["nowhere", "nosuch://x/y", "file:///nowhere/at/all"])
def test_place_that_is_none_is_refused_or_empty(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("list", "verify"):
        assert hotloop(["checkpoints", command, place]) in (0, 2)
        shown = capsys.readouterr()
        assert "no run directory" in shown.err or "cannot open" in shown.err or shown.out == "no checkpoint yet\n"  # fmt: skip
