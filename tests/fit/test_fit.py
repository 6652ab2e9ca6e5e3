"""`hotloop fit` on a training small enough for seconds."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.cli.main import run
from hotloop.core.errors import CommandFailed, ExitCode, UsageError
from hotloop.core.memory_use import Fit, Rehearsed, Way, is_for_memory
from hotloop.core.progress import silent
from hotloop.core.settings import load_settings
from hotloop.fit import program
from hotloop.fit import proof as proving
from hotloop.fit.processes import Processes
from hotloop.fit.program import splits
from hotloop.fit.proof import _spread, proven
from hotloop.hardware.gpus import known_gpu, machine_with
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import resolve
from hotloop.report.memory import render_fit

LARGER = ("model.width=256", "model.layers=3", "model.context=64", "train.microbatch=64")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--memory", "much"], "is no size"),
        (["--memory", "0G"], "is no size"),
        (["--device", "H300"], "is not known"),
        (["--prove", "--no-run"], "--no-run does not"),
        (["train.microbatchx=2"], "did you mean"),
        (["train.microbatch=0"], "greater than 0"),
    ],
)
def test_bad_input_is_one_error(
    words: list[str], said: str, tiny_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fit", str(tiny_config), *words]) == ExitCode.USAGE
    assert said in capsys.readouterr().err


def test_a_gpu_that_is_not_here_is_predicted_by_a_trace(tiny_config: Path, tmp_path: Path) -> None:
    file = tmp_path / "fit.json"
    words = ["fit", str(tiny_config), "--device", "T4", "--json", str(file)]
    assert run(words) == ExitCode.FINE
    found = json.loads(file.read_text())
    assert found["limit_bytes"] == 16 * 10**9
    assert found["measured_bytes"] is found["calibrated_by"] is None
    assert sum(found["parts"].values()) == found["whole_bytes"]
    assert found["unknown"]
    sizes = {int(size): peak for size, peak in found["by_microbatch"].items()}
    asked = found["microbatch"]
    assert [*sizes] == [asked // 2, asked, 2 * asked, 4 * asked]
    assert sizes[asked] == found["whole_bytes"]
    assert sorted(sizes.values()) == [*sizes.values()]


def test_memory_of_kernels_that_are_timed_first_is_not_predicted(
    tiny_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", str(tiny_config), "train.compile=max-autotune-no-cudagraphs", "--no-run"]
    assert run(words) == ExitCode.ENVIRONMENT
    assert "its kernels are chosen by timing them" in capsys.readouterr().err


def test_memory_of_cuda_graphs_is_among_what_is_unknown(tiny_config: Path, tmp_path: Path) -> None:
    file = tmp_path / "fit.json"
    words = ["fit", str(tiny_config), "--device", "T4", "--json", str(file)]
    assert run([*words, "train.compile=reduce-overhead"]) == ExitCode.FINE
    assert any("CUDA graphs" in each for each in json.loads(file.read_text())["unknown"])


def test_nothing_fits_where_the_process_alone_is_larger(
    tiny_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", str(tiny_config), "--memory", "50M", "--no-run"]
    assert run(words) == ExitCode.FOUND
    out, err = capsys.readouterr()
    assert err.count("rehearsing") == 2  # no way is looked for
    assert "at any microbatch" in out
    assert "uncalibrated" in out


@pytest.mark.parametrize(
    ("measured", "limit_bytes", "fits", "said"),
    [
        (900, 2000, True, "at the peak as predicted."),
        (900, 1050, True, "off by up to a tenth, so it may be too much"),
        (1010, 1005, False, "1,000 MB at the peak as predicted, 1,010 MB as measured"),
        (None, 1005, False, "but a real run was ended for its memory"),
    ],
)
def test_what_was_measured_counts_more_than_what_was_predicted(
    tiny_config: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured: int | None,
    limit_bytes: int,
    fits: bool,
    said: str,
) -> None:
    each = 1000 * 10**6
    rehearsed = Rehearsed(*[each] * len(fields(Rehearsed)))

    def run(changes: Any, *, steps: int) -> Any:
        if changes["train.microbatch"] == 1:
            return each
        if measured is None:
            raise CommandFailed("killed", returncode=-9)
        return measured * 10**6

    processes: Any = SimpleNamespace(
        settings=load_settings(tiny_config), machine=Machine("cpu", (), None, 2), compiles=False, kept_fraction=None,
        peaks={}, rehearse=lambda changes: rehearsed, run=run,
    )  # fmt: skip
    monkeypatch.setattr(program, "_largest", lambda *given: (8, {1: each, 4: each}))
    monkeypatch.setattr(program, "_ways", lambda *given: ())
    monkeypatch.setattr(program, "peak_bytes", lambda peak: peak)
    limit = program.Limit(limit_bytes * 10**6, "--memory", 8 * each)
    found = program.fit(processes, limit, device="cpu", runs=True, most_sequences=99)
    assert found.fits is fits
    assert said in render_fit(found).splitlines()[0]


@pytest.mark.slow
def test_a_real_run_takes_what_was_predicted_and_what_does_not_fit_gets_settings_that_do(
    tiny_config: Path, tmp_path: Path
) -> None:
    file = tmp_path / "fit.json"
    words = ["fit", str(tiny_config), *LARGER, "--json", str(file)]
    assert run(words) == ExitCode.FINE
    found = json.loads(file.read_text())
    assert abs(found["error_fraction"]) < 0.1
    assert found["largest_microbatch"] >= 64
    less = (found["least_bytes"] + found["whole_bytes"]) // 2_000
    assert run([*words, "--memory", f"{less}K"]) == ExitCode.FOUND
    tight = json.loads(file.read_text())
    assert tight["ways"][0]["settings"][0].startswith("train.microbatch=")
    assert tight["ways"][0]["whole_bytes"] <= tight["limit_bytes"]
    assert 0 < tight["largest_microbatch"] < 64


@pytest.mark.slow
def test_a_proof_trains_whole_within_the_memory(tiny_config: Path, tmp_path: Path) -> None:
    file = tmp_path / "fit.json"
    words = ["fit", str(tiny_config), *LARGER, "--memory", "900M", "--prove", "--steps", "8"]
    assert run([*words, "--json", str(file)]) == ExitCode.FINE
    proof = json.loads(file.read_text())["proof"]
    assert proof["survived"]
    assert proof["microbatch"] * proof["grad_accum_steps"] == 64
    assert proof["num_processes"] <= 8


def test_what_was_not_rehearsed_is_on_the_line_through_its_neighbours() -> None:
    peaks = {1: 100, 8: 800, 20: 2600, 40: program.NOT_EVEN_ADDRESSES}
    assert program._by_microbatch(peaks, 8, 99) == {4: 400, 8: 800, 16: 2000, 32: 4400}
    assert program._by_microbatch(peaks, 8, 8) == {4: 400, 8: 800}
    assert program._by_microbatch({1: 100}, 1, 99) == {1: 100}


@pytest.mark.parametrize("survives", ["chunked", "full"])
def test_where_no_microbatch_fits_the_settings_that_do_are_proven_the_cheapest_first(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: str
) -> None:
    """What a real run takes is played: which settings survive cannot be told from here."""
    machine = Machine("cuda", (), None, 2)
    processes = Processes(load_settings(tiny_config), machine, 257, tmp_path, silent)
    given = processes.settings
    batch = ("train.microbatch=1", "train.grad_accum_steps=4")
    chunked, full = "train.loss=chunked", "train.activation_checkpointing=full"
    ways = (Way((chunked,), 900, ""), Way((*batch, full), 800, ""))
    fit = Fit("cuda", 4, 1, {}, 1, 1, None, None, None, 1000, "--memory", False, 0, 1, ways)

    def peak(self: Processes, changes: Any, **how: Any) -> int:
        train = self.settings.config.train
        return 500 if survives in (train.loss, train.activation_checkpointing) else 2000

    monkeypatch.setattr(Processes, "run", peak)
    monkeypatch.setattr(proving, "peak_bytes", lambda peak: peak)
    monkeypatch.setattr(proving, "tokens_per_s", lambda peak: 1.0)
    found = proven(processes, fit, steps=8).proof
    assert found is not None
    assert found.survived
    assert (found.microbatch, found.grad_accum_steps, found.settings) == (
        (4, 1, (chunked,)) if survives == "chunked" else (1, 4, (full,))
    )
    assert processes.settings is given


def test_a_run_has_memory_against_the_microbatch_on_its_page(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "run", tmp_path / "page.html"
    assert run(["train", str(tiny_config), "train.microbatch=2", "--out", str(out)]) == 0
    assert run(["report", str(out), "--html", str(page)]) == ExitCode.FINE
    command = f"hotloop fit {out / 'config.yaml'}"
    assert f"<code>{command}</code>" in page.read_text()
    assert run([*command.split()[1:], "--no-run", "--memory", "50M"]) == ExitCode.FOUND
    file = tmp_path / "report.json"
    assert run(["report", str(out), "--html", str(page), "--json", str(file)]) == ExitCode.FINE
    found = json.loads(file.read_text())
    assert [*found["fit"]["by_microbatch"]] == ["1", "2", "4", "8"]
    assert found["fit"]["measured"] == {"2": found["memory"]["peak_bytes"]}
    assert command not in page.read_text()
    assert "in 50 MB" in page.read_text()
    assert run([*command.split()[1:], "--device", "T4"]) == ExitCode.FINE
    assert run(["report", str(out), "--json", str(file)]) == ExitCode.FINE
    assert json.loads(file.read_text()) == found  # of another device nothing is kept


@pytest.mark.slow  # a dozen rehearsals
def test_what_does_not_fit_ends_with_the_command_that_proves_what_does(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fit.json"
    words = ["fit", str(tiny_config), *LARGER, "--no-run", "--json", str(file)]
    assert run(words) == ExitCode.FINE
    found = json.loads(file.read_text())
    less = (found["least_bytes"] + found["whole_bytes"]) // 2_000_000
    capsys.readouterr()
    assert run([*words, "--memory", f"{less}M"]) == ExitCode.FOUND
    shown = capsys.readouterr().out
    assert "(peaks predicted, not measured):" in shown
    proof = f"hotloop fit {tiny_config} {' '.join(LARGER)} --memory {less}M --prove"
    assert shown.endswith(f"proof of the cheapest: `{proof}`\n")


def test_splits_keep_the_sequences_of_a_step() -> None:
    assert splits(4, 3) == [12, 6, 4, 3, 2, 1]
    assert _spread([12, 6, 4, 3, 2, 1]) == [12, 6, 3]
    assert _spread([]) == []


@pytest.mark.parametrize(
    ("returncode", "do", "expected"),
    [
        (-9, "", True),
        (137, "", True),
        (4, "error: out of memory", True),
        (4, "takes 9 GB in fp32; this process may use 1 GB", True),
        (1, "ValueError", False),
    ],
)
def test_what_ends_for_memory_is_told_from_other_failures(
    returncode: int, do: str, expected: bool
) -> None:
    assert is_for_memory(CommandFailed("it failed", do=do, returncode=returncode)) is expected


def test_a_compiled_gpu_training_keeps_a_part_of_the_traced_activations(
    tiny_config: Path, tmp_path: Path
) -> None:
    words = ["train.compile=true", "train.attention=cudnn", "train.precision=bf16"]
    settings = load_settings(tiny_config, words)
    machine = machine_with(known_gpu("H100-80GB"))
    processes = Processes(settings, machine, 257, tmp_path, silent)
    whole = processes.rehearse({})
    processes.kept_fraction = 0.25
    part = processes.rehearse({})
    assert part.activations_bytes == pytest.approx(whole.activations_bytes / 4, abs=1)
    assert whole.steps_bytes - part.steps_bytes == whole.activations_bytes - part.activations_bytes
    assert processes.rehearse({"train.compile": False, "train.attention": "sdpa"}) == whole


def test_a_chunk_of_the_loss_is_traced_with_its_logits_and_both_their_copies(
    tiny_config: Path, tmp_path: Path
) -> None:
    """A GPU computes them at once: bf16 products, then fp32 and its logarithms."""
    words = ["train.loss=chunked", "train.precision=bf16"]
    vocabulary = 8192
    machine = machine_with(known_gpu("H100-80GB"))
    processes = Processes(load_settings(tiny_config, words), machine, vocabulary, tmp_path, silent)
    few, many = (processes.rehearse({"train.microbatch": n}).steps_bytes for n in (32, 64))
    assert (many - few) / (32 * 16 * vocabulary) == pytest.approx(2 + 4 + 4, rel=0.05)


def test_flex_attention_is_refused_for_narrow_heads(tiny_config: Path) -> None:
    machine = machine_with(known_gpu("H100-80GB"))
    words = ["train.compile=true", "train.attention=flex"]
    with pytest.raises(UsageError, match="heads of 16 channels or more"):
        resolve(load_settings(tiny_config, words), machine)
    resolve(load_settings(tiny_config, [*words, "model.width=32"]), machine)
