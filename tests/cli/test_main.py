"""One way in, one way to end: help that loads nothing, errors that say what, where and what to do."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import torch

from hotloop.cli import main as cli
from hotloop.core.causal_config import CausalConfig
from hotloop.core.config import RunConfig, known_keys
from hotloop.core.errors import (
    CommandFailed,
    EnvironmentFailed,
    ExitCode,
    Interrupted,
    UsageError,
)
from hotloop.core.finetune_config import FinetuneConfig
from hotloop.core.module_config import ModuleConfig

Run = Callable[[BaseException], tuple[int, str]]


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command that raises what it is given; exit code and stderr."""

    def run(error: BaseException) -> tuple[int, str]:
        @click.command()
        def report() -> None:
            raise error

        monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: report)
        code = cli.run(["report"])
        return code, capfd.readouterr().err

    return run


def test_help_and_version_load_nothing_heavy() -> None:
    script = (
        "import sys; from hotloop.cli.main import run; assert run(['--help']) == 0; "
        "assert run(['--version']) == run(['doctor', '--help']) == run(['report', '--help']) == 0; "
        "heavy = {'torch', 'numpy', 'libcst', 'pydantic', 'rich', 'yaml'}; "
        "sys.exit(repr(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
    for name in cli.COMMANDS:
        assert f"\n  {name} " in done.stdout


def test_importing_hotloop_loads_no_dependency() -> None:
    script = (
        "import sys, hotloop; sys.exit(repr([m for m in ('torch', 'click') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_user_error_says_what_where_and_what_to_do(ending: Run) -> None:
    error = UsageError("unknown key `train.compiled`", where="a.yaml:14", do="did you mean x?")
    code, text = ending(error)
    assert code == 2
    assert text == "error: unknown key `train.compiled`\n  at a.yaml:14\n  did you mean x?\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EnvironmentFailed("no device"), 4),
        (CommandFailed("it failed", returncode=7), 5),
        (Interrupted("saved step 12; run it again"), 75),
        (KeyboardInterrupt(), 75),
        (click.Abort(), 75),
        (MemoryError(), 4),
        (OSError(errno.ENOSPC, "No space left on device", "/x/steps.jsonl"), 4),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 4),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 4),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), 4),
        (click.exceptions.Exit(3), 3),
    ],
)
def test_every_kind_of_ending_has_its_exit_code(
    ending: Run, error: BaseException, code: int
) -> None:
    found, text = ending(error)
    assert found == code
    assert "Traceback" not in text


def test_ctrl_c_while_it_is_being_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", "doctor"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr, done.stdout) == (75, "interrupted\n", "")


def test_interruption_says_how_to_continue_and_is_not_called_an_error(
    ending: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    _, text = ending(KeyboardInterrupt())
    assert text == "interrupted\n"
    assert cli.run(["train"]) == 75
    assert capfd.readouterr().err == "interrupted; run the same command again to continue\n"
    assert ending(Interrupted("saved step 12"))[1] == "saved step 12\n"


def test_full_disk_names_the_file(ending: Run) -> None:
    _, text = ending(OSError(errno.ENOSPC, "No space left on device", "/x/steps.jsonl"))
    assert "no space left on the disk" in text
    assert "at /x/steps.jsonl" in text


def test_out_of_memory_is_answered_with_settings_that_every_training_has(ending: Run) -> None:
    _, text = ending(MemoryError())
    named = re.findall(r"`(\w+\.\w+)`", text)
    assert named == ["train.microbatch", "train.grad_accum_steps"]
    for kind in (RunConfig, FinetuneConfig, CausalConfig, ModuleConfig):
        assert {*named} <= known_keys(kind).keys()
    assert "layers" not in text


def test_missing_extra_names_the_package_to_install(ending: Run) -> None:
    code, text = ending(ModuleNotFoundError("No module named 'tensorboard'", name="tensorboard"))
    assert code == 2
    assert "pip install 'hotloop[tensorboard]'" in text


def test_bug_is_one_line_and_its_traceback_is_in_a_file(ending: Run) -> None:
    code, text = ending(ZeroDivisionError("division by zero"))
    assert code == cli.INTERNAL_ERROR
    assert text.startswith("error: internal: ZeroDivisionError: division by zero\n")
    assert "Traceback" not in text
    path = Path(text.splitlines()[1].removeprefix("  at "))
    assert "ZeroDivisionError" in path.read_text()
    path.unlink()


@pytest.mark.parametrize(
    ("said", "is_lost"),
    [
        ("CUDA error: unspecified launch failure\nSearch for `cudaErrorLaunchFailure'", True),
        ("CUDA error: no CUDA-capable device is detected", True),
        ("HIP error: no ROCm-capable device is detected", True),
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("No CUDA GPUs are available", True),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", True),
        ("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", True),
        ("CUDA error: device-side assert triggered", False),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_a_gpu_that_fails_is_no_bug_and_says_how_to_go_on(
    ending: Run,
    said: str,
    is_lost: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, text = ending(torch.AcceleratorError(said))
    assert code == (ExitCode.ENVIRONMENT if is_lost else cli.INTERNAL_ERROR)
    assert ("this is a bug" in text) != is_lost
    if is_lost:
        first = said.splitlines()[0]
        assert text.startswith(f"error: the GPU failed: {first}\n  look at `nvidia-smi`, ")
        assert "the same command again: it begins again" in text
        assert cli.run(["train"]) == code
        assert "it continues where it was" in capfd.readouterr().err


def test_a_pipe_that_breaks_inside_of_a_command_is_no_success(ending: Run) -> None:
    """Only what is printed may be lost in silence; this one was to a worker or to a server."""
    code, text = ending(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert code == cli.INTERNAL_ERROR
    Path(text.splitlines()[1].removeprefix("  at ")).unlink()


def test_debug_variable_shows_the_traceback(ending: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_DEBUG", "1")
    assert "Traceback" in ending(ZeroDivisionError())[1]


def test_control_characters_of_a_file_name_do_not_reach_the_terminal(ending: Run) -> None:
    _, text = ending(UsageError("no such file", where="\x1b[2Jevil"))
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["repotr"], "did you mean `hotloop report`?"),
        (["zzzz"], "`hotloop --help` lists them"),
        (["report"], "missing argument 'RUN'"),
        (["report", "--nope"], "no such option"),
        (["--nope"], "no such option"),
    ],
)
def test_wrong_usage_is_exit_2_with_a_hint(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert cli.run(arguments) == ExitCode.USAGE
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert expected in text


def test_no_command_shows_the_help_and_calls_nothing_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run([]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Usage: hotloop")
    assert "error" not in err
