"""`hotloop report BEFORE AFTER` of two fine-tunings, one of them with plain settings."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import yaml
from decoders import save_decoder, write_prompts
from encoders import save_encoder, write_csv

from hotloop.core.step import read_steps

Run = Callable[..., str]
PLAIN = ["model.packed=false", "train.precision=fp32", "train.compile=false"]


@pytest.mark.parametrize("kind", ["sentiment", "instructions"])
def test_quality_stands_beside_speed_time_use_and_memory_of_both(
    kind: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    if kind == "sentiment":
        data, model = write_csv(tmp_path / "a.csv", 80), save_encoder("bert", tmp_path / "model")
    else:
        data, model = write_prompts(tmp_path / "a.jsonl"), save_decoder("llama", tmp_path / "model")
    words = ["train", "--task", kind, "--data", str(data), "--model", str(model)]
    words += ["train.epochs=2", "logging.tensorboard=false"]
    both = before, after = tmp_path / "before", tmp_path / "after"
    for own, out in ((PLAIN, before), (["train.precision=fp32"], after)):
        assert "not packed" not in run([*words, *own, "--out", str(out)])
    layouts = [json.loads((each / "census.json").read_text())["loader"]["layout"] for each in both]
    assert layouts == ["padded", "packed"]
    steps = [[*read_steps(each / "steps.jsonl")] for each in both]
    dropout = 0.3 if kind == "sentiment" else 1e-4
    assert steps[0][0].loss == pytest.approx(steps[1][0].loss, abs=dropout)

    shown = run(["report", *map(str, both), "--json", str(tmp_path / "both.json")])
    found = json.loads((tmp_path / "both.json").read_text())
    for name, place, records in zip(("before", "after"), both, steps, strict=True):
        told = found[name]["measures"]
        task = json.loads((place / "task.json").read_text())
        loss = json.loads((place / "evals.jsonl").read_text().splitlines()[-1])["loss"]
        quality = "macro_f1" if kind == "sentiment" else "perplexity"
        assert (told[quality], told["held-out loss"]) == (task[quality], loss)
        calm = [each for each in records if not each.tags]
        wall = math.fsum(each.wall_s for each in calm)
        assert told["it/s"] == pytest.approx(1 / median(each.wall_s for each in calm))
        assert told["examples/s"] == pytest.approx(sum(each.samples or 0 for each in calm) / wall)
        assert told["tokens/s"] == pytest.approx(sum(each.tokens or 0 for each in calm) / wall)
        assert told["whole run"] > sum(each.wall_s for each in records)
        assert told["memory, peak"] > 1e8
        assert told["waiting for data"] >= 0
        label = {"macro_f1": "macro F1"}.get(quality, quality)
        assert f"{label} {found['before']['measures'][quality]:.4f} and" in shown
    change = told[quality] - found["before"]["measures"][quality]
    assert f"{change:+.4f}" in shown
    assert found["settings"] == {"model.packed": [False, "auto"]}
    assert 'model.packed false "auto"' in shown
    assert "trained once" in shown
    assert not any("held-out examples" in each for each in found["notes"])

    settings = yaml.safe_load((after / "config.yaml").read_text())
    settings["data"]["seed"] = 1
    (after / "config.yaml").write_text(yaml.safe_dump(settings))
    shown = run(["report", *map(str, both)])
    assert "the held-out examples may not be the same, as `data.seed` is not" in shown
    assert "--html is of one run" in run(["report", *map(str, both), "--html", "a.html"], code=2)
    (after / "task.json").write_text("{")
    assert "damaged, and left out" in run(["report", *map(str, both)], code=2)
    (tmp_path / "none").mkdir()
    (tmp_path / "none/config.yaml").write_text((before / "config.yaml").read_text())
    assert "no step of a training is recorded" in run(["report", str(before), str(tmp_path / "none")], code=2)  # fmt: skip
