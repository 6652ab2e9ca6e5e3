"""What a run continues from: never a foreign checkpoint, never an older one or none in silence."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from trainings import weights

from hotloop.checkpoint.state import FILES
from hotloop.cli.main import run as command
from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings
from hotloop.core.step import StepRecord, read_steps
from hotloop.train.continuation import wrong_from
from hotloop.train.stability import TrainingDiverged
from hotloop.train.start import start

SAVING = ("checkpoint.every_steps=3", "checkpoint.keep=3", "eval.every_steps=0")


def train(
    config: Path,
    directory: Path,
    *settings: str,
    from_step: int | None = None,
    stretch: bool = False,
) -> list[str]:
    """Returns the notes."""
    notes: list[str] = []
    start(
        load_settings(config, (*SAVING, *settings)),
        directory,
        from_step=from_step,
        stretch=stretch,
        warn=notes.append,
    )
    return notes


def kept(directory: Path) -> list[int]:
    return sorted(int(d.name[5:13]) for d in (directory / "checkpoints").glob("step-*"))


def checkpoint(directory: Path, step: int) -> Path:
    return next((directory / "checkpoints").glob(f"step-{step:08d}-*"))


def recorded(directory: Path) -> list[tuple[int, float | None]]:
    return [(each.step, each.loss) for each in read_steps(directory / "steps.jsonl")]


def assert_same_end(one: Path, other: Path) -> None:
    left, right = weights(one), weights(other)
    for file in FILES:
        assert left[file].keys() == right[file].keys()
        assert all(torch.equal(left[file][name], right[file][name]) for name in left[file])


def forge(directory: Path, name: str, content: bytes) -> None:
    """Replace a file of a checkpoint, and its size and checksum in the manifest."""
    (directory / name).write_bytes(content)
    manifest = json.loads((directory / "manifest.json").read_bytes())
    manifest["files"][name] = {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))


Plant = Callable[..., None]
Tensors = dict[str, torch.Tensor]


def cut(tensors: Tensors) -> None:
    name = max(tensors, key=lambda name: tensors[name].numel())
    tensors[name] = tensors[name][:3].clone()


def one_value(tensors: Tensors) -> None:
    name = max(tensors, key=lambda name: tensors[name].numel())
    tensors[name] = torch.zeros(())


def half(tensors: Tensors) -> None:
    name = max(tensors, key=lambda name: tensors[name].numel())
    tensors[name] = (
        tensors[name].view(torch.uint8).clone() if name == "torch" else tensors[name].half()
    )
    if name == "torch":
        tensors[name] = tensors[name].short()


def missing(tensors: Tensors) -> None:
    del tensors[sorted(tensors)[0]]


def extra(tensors: Tensors) -> None:
    tensors["blocks.7.nothing/exp_avg"] = torch.zeros(3)


def empty(tensors: Tensors) -> None:
    tensors.clear()


DAMAGES = (cut, one_value, half, missing, extra, empty)


@pytest.mark.at_once(9)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("optimizer", ("optimizer.fused=true",)),
        ("optimizer", ("optimizer.name=muon", "optimizer.fused=true")),
        ("optimizer", ("optimizer.name=sgd",)),
        ("average", ("averaging.name=ema", "averaging.every_steps=1")),
        ("random", ()),
        ("model", ()),
    ],
)
def test_tensors_that_are_not_those_of_the_run_are_refused_before_they_are_used(
    tiny_config: Path,
    tmp_path: Path,
    file: str,
    settings: tuple[str, ...],
    damage: Callable[[Tensors], None],
) -> None:
    """A fused kernel writes past the end of a moment that is too small, and the process crashes."""
    run = tmp_path / "run"
    train(tiny_config, run, *settings, "train.steps=6")
    name = f"{file}.safetensors"
    tensors = safetensors.torch.load((checkpoint(run, 6) / name).read_bytes())
    damage(tensors)
    forge(checkpoint(run, 6), name, safetensors.torch.save(tensors))
    before = recorded(run)
    # Another course from a finished run's end, so that it goes on to train.
    with pytest.raises(UsageError) as caught:
        train(tiny_config, run, *settings, "train.steps=8", stretch=True)
    assert caught.value.where is not None
    assert "step-00000006" in caught.value.where
    assert caught.value.do is not None
    assert recorded(run) == before


def test_a_checkpoint_without_any_optimizer_state_is_good_where_no_update_was_made(
    tiny_config: Path, tmp_path: Path, plant: Plant
) -> None:
    skip = ("stability.nonfinite=skip", "optimizer.fused=false")
    plant({position: float("nan") for position in range(0, 12, 4)})
    train(tiny_config, tmp_path / "run", *skip, "train.steps=3", "schedule.warmup_steps=2")
    assert not weights(tmp_path / "run")["optimizer"]
    train(
        tiny_config,
        tmp_path / "run",
        *skip,
        "train.steps=6",
        "schedule.warmup_steps=2",
        stretch=True,
    )
    assert weights(tmp_path / "run")["optimizer"]


@pytest.mark.parametrize(
    "state",
    [
        b"{}",
        b'{"scaler": null, "python_random": [3, [1, 2], null]}',
        b'{"scaler": null, "numpy_random": [[1, 2], 0, 0, 0.0]}',
        b'{"scaler": null, "python_random": "x", "num_ranks": "many"}',
        b"\xff",
        b"[[[",
    ],
)
def test_a_state_that_hotloop_never_wrote_is_refused(
    tiny_config: Path, tmp_path: Path, state: bytes
) -> None:
    train(tiny_config, tmp_path / "run", "train.steps=6")
    forge(checkpoint(tmp_path / "run", 6), "state.json", state)
    with pytest.raises(UsageError) as caught:
        train(tiny_config, tmp_path / "run", "train.steps=6")
    assert "step-00000006" in str(caught.value.where)


@pytest.mark.parametrize(
    ("under", "field", "value"),
    [
        (None, "stability", {"x": []}),
        (None, "num_ranks", {"x": []}),
        ("stability", "num_rollbacks", ""),
        ("stability", "skipped_in_a_row", None),
        ("stability", "num_spikes", -1),
        ("stability", "recent", [["x"], []]),
    ],
)
def test_a_part_of_the_state_of_another_kind_is_refused(
    tiny_config: Path, tmp_path: Path, under: str | None, field: str, value: object
) -> None:
    train(tiny_config, tmp_path / "run", "train.steps=6")
    directory = checkpoint(tmp_path / "run", 6)
    state = json.loads((directory / "state.json").read_bytes())
    (state[under] if under else state)[field] = value
    forge(directory, "state.json", json.dumps(state).encode())
    with pytest.raises(UsageError, match="not a checkpoint that hotloop wrote"):
        train(tiny_config, tmp_path / "run", "train.steps=6")


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again_in_silence(
    tiny_config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(tiny_config, run)
    before = recorded(run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UsageError, match="12 steps of this run are recorded and its checkpoints"):
        train(tiny_config, run)
    (run / "steps.jsonl").rename(tmp_path / "steps.jsonl")
    (tmp_path / "steps.jsonl").rename(run / "steps.jsonl")
    assert recorded(run) == before
    notes = train(tiny_config, run, from_step=0)
    assert "continuing from step 0 as asked" in notes[0]
    assert recorded(run) == before


def test_a_run_saved_at_its_end_alone_is_not_begun_again_in_silence(
    tiny_config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(tiny_config, run, "checkpoint.every_steps=0")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(UsageError, match="its checkpoints are gone"):
        train(tiny_config, run, "checkpoint.every_steps=0")


def test_evaluations_alone_tell_of_lost_checkpoints_too(tiny_config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny_config, run, "eval.every_steps=4")
    shutil.rmtree(run / "checkpoints")
    (run / "steps.jsonl").unlink()
    with pytest.raises(UsageError, match="its checkpoints are gone"):
        train(tiny_config, run, "eval.every_steps=4")


def test_checkpoints_moved_to_another_disk_and_linked_are_followed(
    tiny_config: Path, tmp_path: Path
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    train(tiny_config, whole)
    train(tiny_config, run)
    for directory in list((run / "checkpoints").glob("step-*")):
        moved = directory.rename(tmp_path / f"moved-{directory.name}")
        if directory.name.startswith("step-00000012"):
            shutil.rmtree(moved)
            continue
        directory.symlink_to(moved)
    # The last one was not moved but deleted: it was never recorded, so it is as if killed before it.
    notes = train(tiny_config, run)
    assert notes == ["continues from step 9 of 12"]
    assert_same_end(run, whole)
    assert recorded(run) == recorded(whole)


def test_steps_killed_before_the_first_save_are_made_again_with_a_note(
    tiny_config: Path, tmp_path: Path, dies_after: Callable[..., object]
) -> None:
    with dies_after(5):  # type: ignore[attr-defined]
        train(tiny_config, tmp_path / "run", "checkpoint.every_steps=50")
    notes = train(tiny_config, tmp_path / "run", "checkpoint.every_steps=50")
    assert notes == ["no checkpoint yet: 4 recorded steps are made again"]


def test_a_save_that_was_cut_short_is_removed_with_a_note(
    tiny_config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(tiny_config, run)
    newest = checkpoint(run, 12)
    (newest / "manifest.json").unlink()
    notes = train(tiny_config, run)
    assert notes == [
        f"removed {newest.name}, which has no manifest: the save of it, or its deletion, was cut short",
        "continues from step 9 of 12",
    ]


def test_going_back_to_an_older_checkpoint_leads_to_the_same_end(
    tiny_config: Path, tmp_path: Path
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    for each in (run, whole):
        train(tiny_config, each, "eval.every_steps=2")
    assert kept(run) == [6, 9, 12]
    with pytest.raises(UsageError, match="no checkpoint of step 5") as caught:
        train(tiny_config, run, "eval.every_steps=2", from_step=5)
    assert "6, 9, 12" in str(caught.value)
    notes = train(tiny_config, run, "eval.every_steps=2", from_step=6)
    assert "continuing from step 6 as asked" in notes[0]
    assert_same_end(run, whole)
    assert recorded(run) == recorded(whole)
    assert (run / "evals.jsonl").read_bytes() == (whole / "evals.jsonl").read_bytes()
    assert len(list((run / "checkpoints").glob("left-step-*"))) == 2
    assert train(tiny_config, run, "eval.every_steps=2") == ["already finished: 12 of 12 steps"]


def test_a_run_that_diverged_goes_on_from_before_it_did(
    tiny_config: Path, tmp_path: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the update of step 10 on everything is left out: the checkpoints since are of no use."""
    run = tmp_path / "run"
    skip = (
        "stability.nonfinite=skip",
        "stability.max_skips=6",
        "checkpoint.every_steps=2",
        "checkpoint.keep=2",
        "train.steps=60",
    )
    plant({position: float("nan") for position in range(40, 400, 4)}, loss=True)
    with pytest.raises(TrainingDiverged, match="6 updates in a row"):
        train(tiny_config, run, *skip)
    assert kept(run)[:2] == [8, 10]
    with pytest.raises(TrainingDiverged, match="6 updates in a row"):
        train(tiny_config, run, *skip)
    assert kept(run)[:2] == [8, 10], "running it again loses nothing"
    assert [step for step, _ in recorded(run)] == list(range(16))
    monkeypatch.undo()  # what was wrong with the data is repaired
    notes = train(tiny_config, run, *skip)
    assert notes == [
        "loss or gradients are not finite from step 10 on: continuing from step 8, the newest "
        "checkpoint from before, and not from step 14",
        "continues from step 8 of 60",
    ]


def records(path: Path, *values: tuple[float, float, bool]) -> Path:
    lines = [
        StepRecord(
            step=step, wall_s=1.0, loss=loss, grad_norm=norm, tags=("skipped",) if skipped else ()
        ).to_json()
        for step, (loss, norm, skipped) in enumerate(values)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_where_the_numbers_went_wrong_is_read_from_the_end(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    good, overflow, lost = (2.0, 1.0, False), (2.0, inf, True), (nan, nan, True)
    path = tmp_path / "steps.jsonl"
    assert wrong_from(path, 4) is None
    assert wrong_from(records(path, good, good), 4) is None
    assert wrong_from(records(path, good, lost, good), 4) is None
    assert wrong_from(records(path, good, overflow), 4) is None, "fp16 looks for its scale"
    assert wrong_from(records(path, good, *[overflow] * 4), 4) == 1
    assert wrong_from(records(path, good, overflow, lost, lost), 4) == 1
    assert wrong_from(records(path, good, (nan, nan, False)), 4) == 1


def test_generate_and_export_say_that_the_newest_checkpoint_is_damaged(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(tiny_config, run)
    weights = checkpoint(run, 12) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    said = "note: a newer checkpoint cannot be used, this is step 9: step-00000012"
    out = tmp_path / "out.json"
    assert command(["generate", str(run), "--tokens", "2", "--json", str(out)]) == 0
    assert said in capsys.readouterr().err
    assert "step-00000012" in json.loads(out.read_bytes())["notes"][0]
    exported = ["export", str(run), "--out", str(tmp_path / "exported"), "--no-verify"]
    assert command([*exported, "--json", str(out)]) == 0
    assert said in capsys.readouterr().err
    assert "step-00000012" in json.loads(out.read_bytes())["notes"][0]


def test_any_damage_of_a_checkpoint_ends_in_an_older_one_or_in_a_usage_error(
    tiny_config: Path, tmp_path: Path
) -> None:
    """Random bytes into any file, with and without its checksum in the manifest."""
    generator = random.Random(0)
    whole = tmp_path / "whole"
    train(tiny_config, whole)
    for number in range(30):
        run = shutil.copytree(whole, tmp_path / f"run-{number}")
        directory = checkpoint(run, 12)
        path = generator.choice(sorted(directory.iterdir()))
        content = bytearray(path.read_bytes())
        for _ in range(generator.randint(1, 20)):
            content[generator.randrange(min(len(content), 400))] = generator.randrange(256)
        if path.name == "manifest.json" or number % 3 == 0:
            path.write_bytes(content)
        else:
            forge(directory, path.name, bytes(content))
        with contextlib.suppress(UsageError):  # anything else is a traceback
            train(tiny_config, run)
        shutil.rmtree(run)


def test_a_device_is_compared_by_what_it_is_and_not_by_its_name(
    tiny_config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(tiny_config, run, "train.device=auto")
    now = "cuda" if torch.cuda.is_available() else "cpu"
    assert train(tiny_config, run, f"train.device={now}") == ["already finished: 12 of 12 steps"]
    described = json.loads((run / "environment.json").read_bytes())
    described["cuda"] = None if now == "cuda" else "13.0"
    (run / "environment.json").write_text(json.dumps(described))
    with pytest.raises(UsageError, match="this directory holds a run on"):
        train(tiny_config, run, "train.device=auto")


def test_evaluations_of_one_run_are_all_over_the_same_text(
    tiny_config: Path, tmp_path: Path
) -> None:
    train(tiny_config, tmp_path / "run")  # evaluates never
    train(tiny_config, tmp_path / "run", "eval.every_steps=2", "eval.windows=2")
    train(tiny_config, tmp_path / "other", "eval.every_steps=2")
    with pytest.raises(UsageError, match=r"`eval\.windows: 4`, not 2"):
        train(tiny_config, tmp_path / "other", "eval.every_steps=2", "eval.windows=2")


CONSTANT = ("schedule.name=constant",)
WSD = ("schedule.name=wsd", "schedule.warmup_steps=2", "schedule.decay_fraction=0.25")


def test_a_run_may_be_made_longer_where_the_steps_already_done_stay_the_same(
    tiny_config: Path, tmp_path: Path
) -> None:
    for number, settings in enumerate((CONSTANT, WSD)):
        run, whole = tmp_path / f"run-{number}", tmp_path / f"whole-{number}"
        train(tiny_config, whole, *settings, "train.steps=20")
        train(tiny_config, run, *settings, "train.steps=12")
        if settings is WSD:
            with pytest.raises(UsageError, match="another learning rate from step 9 on"):
                train(tiny_config, run, *WSD, "train.steps=20")
            notes = train(tiny_config, run, *WSD, "train.steps=20", from_step=9)
        else:
            notes = train(tiny_config, run, *settings, "train.steps=20")
        assert "20 steps instead of 12: the steps already done are the same with both" in notes
        assert_same_end(run, whole)
        assert recorded(run) == recorded(whole)
        assert load_settings(run / "config.yaml").config.train.steps == 20


def test_a_schedule_is_stretched_only_where_it_is_asked_for(
    tiny_config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(tiny_config, run)
    before = recorded(run)
    with pytest.raises(UsageError, match="has another learning rate from step 5 on") as caught:
        train(tiny_config, run, "train.steps=20")
    assert "--stretch-schedule" in str(caught.value)
    assert recorded(run) == before
    notes = train(tiny_config, run, "train.steps=20", stretch=True)
    assert "stretched from 12 to 20 steps" in notes[0]
    assert recorded(run)[:12] == before
    assert len(recorded(run)) == 20
    with pytest.raises(UsageError, match="has done 20 steps, more than"):
        train(tiny_config, run, "train.steps=12")


def test_a_mean_that_would_have_begun_elsewhere_is_no_longer_run(
    tiny_config: Path, tmp_path: Path
) -> None:
    tail = (*CONSTANT, "averaging.name=tail", "averaging.every_steps=1")
    train(tiny_config, tmp_path / "run", *tail)
    with pytest.raises(UsageError, match="would have begun at another step"):
        train(tiny_config, tmp_path / "run", *tail, "train.steps=40", stretch=True)
    train(tiny_config, tmp_path / "whole", *tail, "train.steps=40")
    train(tiny_config, tmp_path / "run", *tail, "train.steps=40", from_step=9)
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def test_a_checkpoint_of_other_rules_is_refused_unless_they_make_no_difference(
    tiny_config: Path, tmp_path: Path
) -> None:
    """As those saved before weight decay left the norms out, which have no `rules`."""
    for number, (settings, refused) in enumerate(
        (((), True), (CONSTANT, True), ((*CONSTANT, "optimizer.weight_decay=0"), False))
    ):
        run = tmp_path / f"run-{number}"
        train(tiny_config, run, *settings)
        directory = checkpoint(run, 9)
        state = json.loads((directory / "state.json").read_bytes())
        del state["rules"]
        forge(directory, "state.json", json.dumps(state).encode())
        if refused:
            with pytest.raises(UsageError, match="of another version of hotloop"):
                train(tiny_config, run, *settings, from_step=9)
        else:
            train(tiny_config, run, *settings, from_step=9)


def test_a_checkpoint_that_lost_its_manifest_is_named_and_the_one_before_is_used(
    tiny_config: Path, tmp_path: Path, dies_after: Callable[..., object]
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    train(tiny_config, whole, "checkpoint.background=false")
    with dies_after(11):  # type: ignore[attr-defined]
        train(tiny_config, run, "checkpoint.background=false")
    newest = checkpoint(run, 9)
    (newest / "manifest.json").unlink()
    notes = train(tiny_config, run, "checkpoint.background=false")
    assert notes == [
        f"a newer checkpoint cannot be used: {newest.name} lost its manifest",
        "continues from step 6 of 12",
    ]
    assert newest.with_name(f"damaged-{newest.name}").is_dir(), (
        "a kill right after it would be refused"
    )
    assert_same_end(run, whole)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints" / newest.name).mkdir(parents=True)
    with pytest.raises(UsageError, match="its checkpoints are gone"):
        train(tiny_config, run, "checkpoint.background=false")


def test_what_killed_processes_were_writing_is_removed(tiny_config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".steps.jsonl.a1b2c3_4").write_text("half")
    (run / ".notes.md.a1b2c3_4").write_text("somebody's")
    train(tiny_config, run)
    left = {each.name for each in run.glob(".*")}
    assert left == {".lock", ".notes.md.a1b2c3_4"}
