"""`hotloop generate`: several texts at once, shown as they are made, and what it refuses."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from hotloop.cli.main import run
from hotloop.hardware.device import why_compile_cannot_run


@pytest.fixture
def trained(finished_run: Path) -> str:
    return str(finished_run)


def generated(*arguments: str, file: Path) -> dict[str, Any]:
    assert run(["generate", *arguments, "--json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_texts_of_one_batch_are_those_that_each_seed_gives_alone(
    trained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\ufeffthe loop\r\na \n", encoding="utf-8")
    file = tmp_path / "found.json"
    common = (trained, "--tokens", "20", "--top-p", "0.9", "--temperature", "1.5")
    asked = ("--prompt", "reads a batch ", "--prompts", str(prompts), "--count", "2", "--seed", "7")
    capsys.readouterr()
    together = generated(*common, *asked, file=file)
    shown = capsys.readouterr()
    texts = together["texts"]
    assert [t["prompt"] for t in texts] == [
        p for p in ("reads a batch ", "the loop", "a ") for _ in range(2)
    ]
    assert [t["seed"] for t in texts] == list(range(7, 13))
    assert (together["prompt"], together["text"]) == (texts[0]["prompt"], texts[0]["text"])
    parts = [
        f"--- {i + 1} of 6, seed {t['seed']}\n{t['prompt']}{t['text']}\n"
        for i, t in enumerate(texts)
    ]
    assert shown.out == "".join(parts)
    assert shown.err.endswith(" tokens/s\n")
    for text in texts:
        arguments = ("--prompt", text["prompt"], "--seed", str(text["seed"]))
        assert generated(*common, *arguments, file=file)["texts"] == [text]
    assert len({t["text"] for t in texts}) == 6
    assert {t["ended"] for t in texts} <= {"tokens", "end_of_text"}


def test_texts_are_the_same_where_memory_holds_only_some_at_a_time(
    trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (trained, "--count", "5", "--tokens", "6")
    together = generated(*asked, file=tmp_path / "found.json")["texts"]
    monkeypatch.setattr("hotloop.train.trained.MOST_CACHE_BYTES", 3000)  # two rows of 1280 bytes
    assert generated(*asked, file=tmp_path / "found.json")["texts"] == together


def test_compiled_texts_are_the_same_by_one_graph(
    trained: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through the whole compiler. Of texts past the end of the context, and more than memory holds at a time."""
    if why := why_compile_cannot_run(torch.device("cpu")):
        pytest.skip(why)
    file = tmp_path / "found.json"
    asked = (trained, "--prompt", "the ", "--prompt", "a loop", "--count", "2", "--tokens", "20")
    monkeypatch.setattr("hotloop.train.trained.MOST_CACHE_BYTES", 7000)  # three rows of 2048 bytes
    plain = generated(*asked, file=file)
    assert plain["compile_s"] is None
    torch._dynamo.reset()
    counters.clear()
    capsys.readouterr()
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = generated(*asked, "--compile", file=file)
    assert counters["stats"]["unique_graphs"] == 1
    assert compiled["texts"] == plain["texts"]
    assert max(text["tokens"] for text in plain["texts"]) > 16
    err = capsys.readouterr().err
    assert "note: compiling takes " in err
    assert err.endswith(f" tokens/s, after compiling for {compiled['compile_s']:.1f} s\n")


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_it_says_so_and_goes_on(trained: str, tmp_path: Path) -> None:
    asked = (trained, "--tokens", "5")
    file, wanted = tmp_path / "found.json", generated(*asked, file=tmp_path / "wanted.json")
    ended = subprocess.run(
        [sys.executable, "-m", "hotloop", "generate", *asked, "--compile", "--json", str(file)],
        env={**os.environ, "CXX": "no-such-compiler", "PATH": str(Path(sys.executable).parent)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr
    assert "note: --compile is off: " in ended.stderr
    found = json.loads(file.read_text())
    assert (found["texts"], found["compile_s"]) == (wanted["texts"], None)


def test_an_empty_prompt_starts_a_document(
    trained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = generated(trained, "--prompt", "", "--tokens", "5", file=tmp_path / "a.json")["text"]
    assert text
    assert capsys.readouterr().out.endswith(text + "\n")


def test_what_makes_no_text_is_refused(
    trained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in (("empty", b""), ("gap", b"a\n\nb\n"), ("latin", b"caf\xe9\n")):
        (tmp_path / name).write_bytes(content)
    refused = {
        "a top-p of nan": ["--top-p", "nan"],
        "top-p": ["--top-p", "0"],
        "0<x<=1": ["--top-p", "1.1"],
        "top-k": ["--top-k", "-1"],
        "'--count'": ["--count", "0"],
        "texts of a prompt are the same": ["--count", "2", "--temperature", "0"],
        "a prompt has 17 tokens, and the model sees 16": ["--prompt", "a", "--prompt", "b" * 17],
        "No such file": ["--prompts", str(tmp_path / "none")],
        "Is a directory": ["--prompts", str(tmp_path)],
        "empty:1": ["--prompts", str(tmp_path / "empty")],
        "gap:2": ["--prompts", str(tmp_path / "gap")],
        "not UTF-8 text": ["--prompts", str(tmp_path / "latin")],
        "the prompt is not UTF-8": ["--prompt", "a\udcff"],
    }
    capsys.readouterr()
    for said, wrong in refused.items():
        assert run(["generate", trained, *wrong]) == 2, wrong
        shown = capsys.readouterr()
        assert shown.err.startswith("error: "), wrong
        assert said in shown.err, wrong
        assert shown.out == ""


@pytest.mark.usefixtures("without_compiler")
def test_text_is_shown_as_it_is_made_and_ctrl_c_keeps_it(trained: str, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "hotloop", "generate", trained, "--prompt", "the "]
    command += ["--tokens", "100000000", "--count", "2", "--json", str(file)]
    reader, writer = os.pipe()
    with open(reader, "rb") as shown_here:
        # Nearly full, so that it waits within a write when Ctrl-C comes.
        before = bytes(fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096) - 100)
        os.write(writer, before)
        with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE) as process:
            os.close(writer)
            held = -1
            while process.poll() is None and (held <= len(before) or held != held_by(reader)):
                held = held_by(reader)
                time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)  # it hears of it while there is no room
            out = shown_here.read().removeprefix(before)
            err = process.communicate()[1]
    assert process.returncode == 75, err
    assert err.endswith(b"tokens/s\ninterrupted\n")
    first, other = json.loads(file.read_text())["texts"]
    assert {first["ended"], other["ended"]} <= {"interrupted", "end_of_text"}
    assert out.decode() == (
        f"--- 1 of 2, seed 0\nthe {first['text']}\n--- 2 of 2, seed 1\nthe {other['text']}\n"
    )


@pytest.mark.usefixtures("without_compiler")
def test_it_ends_with_the_reader_of_its_text_unless_a_file_is_to_have_it(
    trained: str, tmp_path: Path
) -> None:
    file = tmp_path / "found.json"
    command = [
        sys.executable,
        "-m",
        "hotloop",
        "generate",
        trained,
        "--prompt",
        "the ",
        "--count",
        "2",
    ]
    for more in (["--tokens", "100000000"], ["--tokens", "400", "--json", str(file)]):
        with subprocess.Popen(
            [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.read(30)
            process.stdout.close()
            err = process.stderr.read() if process.stderr is not None else ""
        assert process.returncode == 0, err
        assert "interrupted" not in err
    ended = {each["ended"] for each in json.loads(file.read_text())["texts"]}
    assert ended <= {"tokens", "end_of_text"}


def held_by(pipe: int) -> int:
    """Bytes that wait to be read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
