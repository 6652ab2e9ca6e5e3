"""The `hotloop` command: a list of commands loaded on demand, and one way to end.

`hotloop --help` must stay instant, so this file imports click and the standard library only.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from hotloop import __version__
from hotloop.cli.output import guard_streams, note, refuse_lost_output, say
from hotloop.core.errors import (
    EnvironmentFailed,
    ExitCode,
    HotloopError,
    Interrupted,
    UsageError,
    first_line,
    lost_device,
)

COMMANDS = {
    "quickstart": "Train a small language model, plain and with hotloop's settings, and compare.",
    "prepare": "Turn text into token shards to train from.",
    "train": "Train a model from a config file.",
    "verify-resume": "Prove that a run resumes exactly: kill it again and again, and compare.",
    "predict": "Label the texts of a file with a fine-tuned model.",
    "generate": "Continue a prompt with a trained model.",
    "export": "Write a trained model for Hugging Face transformers.",
    "checkpoints": "List, verify, show, delete and export the checkpoints of a run.",
    "bench": "Measure what each optimization brings, and hotloop's loader beside torch's.",
    "monitor": "Watch a run, or this machine, from another terminal.",
    "doctor": "Run a training command as it is, and say what holds it back.",
    "tune": "Try other values of a script's own options, and keep what is proven faster.",
    "fit": "Say where the memory of a training goes, and whether it fits.",
    "report": "Say what a run or a comparison showed.",
    "explain": "Explain a finding or an optimization.",
    "env": "Show the machine and what it can do at best.",
}
"""One line for `hotloop --help`, in its order. Each is defined by its name in the module of that name, with `_` for `-`."""

CONTINUES = frozenset({"quickstart", "prepare", "train", "verify-resume", "tune"})
"""Commands that go on where they were interrupted when they are run again."""

STORES = CONTINUES - {"verify-resume", "tune"} | {"export"}
"""Commands whose work is what they store. What they print sums it up, and when that is lost it was
done all the same; of every other command what it prints is the work."""

INTERNAL_ERROR = 70
"""A bug in hotloop (EX_SOFTWARE). None of `ExitCode` fits: 1 would read as a regression and 4 as a
machine worth leaving."""

EXTRAS = {
    "torch": "train",
    "numpy": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "transformers": "export",
    "peft": "lora",
    "pynvml": "gpu",
    "gigatoken": "fast",
    "orjson": "fast",
    "zstandard": "zstd",
    "s3fs": "s3",
    "pyarrow": "parquet",
    "datasets": "hub",
    "tiktoken": "tiktoken",
    "sentencepiece": "sentencepiece",
    "datatrove": "cluster",
    "ray": "ray",
}
"""Optional modules and the extra of this package that brings them."""

_STORAGE = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOTDIR,
        errno.ENAMETOOLONG,
    }
)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"hotloop.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            close = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean `hotloop {close[0]}`?" if close else "`hotloop --help` lists them"
            raise UsageError(f"no such command `{name}`", do=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


group = click.version_option(__version__, prog_name="hotloop", message="%(prog)s %(version)s")(
    LazyGroup(
        "hotloop",
        help="Find what holds a PyTorch training run back, fix it, and prove it.",
        epilog="`hotloop COMMAND --help` says what each one takes. Exit codes: 0 fine, 1 a regression "
        "or finding, 2 bad input, 3 inconclusive or incomparable, 4 the machine failed, 5 the measured "
        "command failed, 75 interrupted and resumable.",
    )
)


def main() -> NoReturn:
    """Entry point of the console script."""
    if "_HOTLOOP_COMPLETE" in os.environ:  # shell completion, answered by click
        group.main(prog_name="hotloop")
    # SIGTERM ends like Ctrl-C: children are ended, what was finished is kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.argv[1:2] == ["train"]:  # Slurm's notice, also while the data is prepared
        signal.signal(signal.SIGUSR1, signal.default_int_handler)
    guard_streams()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every error ends as one clear message."""
    # make_context and invoke, not group.main(): that one answers a closed pipe with exit code 1,
    # which here means a regression.
    try:
        with group.make_context("hotloop", list(arguments)) as context:
            group.invoke(context)
        return _shown(ExitCode.FINE, arguments)
    except click.exceptions.Exit as ended:
        return _shown(ended.exit_code, arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        return ExitCode.USAGE
    except click.ClickException as error:
        return _say(_from_click(error))
    except (KeyboardInterrupt, click.Abort):
        again = bool(CONTINUES & set(arguments[:1]))
        how = "; run the same command again to continue" if again else ""
        return _say(Interrupted(f"interrupted{how}"))
    except HotloopError as error:
        return _say(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, no traceback on a user's screen
        known = _known(error, continues=bool(CONTINUES & set(arguments[:1])))
        return _bug(error) if known is None else _say(known)


def _shown(code: int, arguments: Sequence[str]) -> int:
    """The exit code of a command that ended well, once what it printed has reached its reader."""
    try:
        refuse_lost_output()
    except EnvironmentFailed as lost:
        if code == ExitCode.FINE and not STORES & set(arguments[:1]):
            return _say(lost)
        note(f"what was printed is lost: {lost.what}")
    return code


def _from_click(error: click.ClickException) -> HotloopError:
    message = (
        error.format_message().rstrip(".").replace(" a valid integer range", " a whole number")
    )
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else None
    return UsageError(
        message[:1].lower() + message[1:],
        do=f"`{where} --help` says what it takes" if where else None,
    )


def _known(error: Exception, *, continues: bool) -> HotloopError | None:
    """The clear form of a failure that is not hotloop's own, or None. continues: the same command would go on."""
    if isinstance(error, OSError) and error.errno in _STORAGE:
        from hotloop.core.files import storage_error

        return storage_error(error, error.filename or "a file", "read or write")
    from hotloop.core.memory_use import memory_refusal

    if memory_refusal(error) is not None:
        return EnvironmentFailed(
            "out of memory",
            do="a training takes less with a lower `train.microbatch` and `train.grad_accum_steps` raised as much: the same steps "
            "(on text with `data.layout: bucket` in another order); at a microbatch of 1 the model itself is too large",
        )
    # Of torch.AcceleratorError, too: torch is not imported here.
    if isinstance(error, RuntimeError) and lost_device(str(error)):
        again = "it continues where it was" if continues else "it begins again"
        return EnvironmentFailed(
            f"the GPU failed: {first_line(error)}",
            do=f"look at `nvidia-smi`, then run the same command again: {again}. Where it fails there again on a sound GPU, "
            "HOTLOOP_DEBUG=1 shows where",
        )
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("hotloop"):
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        package = f"'hotloop[{extra}]'" if extra else "hotloop"
        kind = UsageError if extra else EnvironmentFailed
        return kind(
            f"the Python module `{error.name}` is not installed", do=f"pip install {package}"
        )
    return None


def _say(error: HotloopError) -> int:
    prefix = "" if error.exit_code is ExitCode.RESUMABLE else "error: "
    say(f"{prefix}{error}")
    if os.environ.get("HOTLOOP_DEBUG") == "1":
        traceback.print_exc()
    return error.exit_code


def _bug(error: Exception) -> int:
    if os.environ.get("HOTLOOP_DEBUG") == "1":
        traceback.print_exc()
        return INTERNAL_ERROR
    lines = [
        f"error: internal: {type(error).__name__}: {str(error) or 'no message'}".split("\n")[0]
    ]
    try:
        import tempfile  # 5 ms, for a bug alone

        descriptor, path = tempfile.mkstemp(prefix="hotloop-bug-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"hotloop {__version__}, Python {sys.version}\n")
            traceback.print_exception(error, file=file)
        lines += [f"  at {path}", "  this is a bug in hotloop; that file holds what a report needs"]
    except OSError:
        lines += ["  this is a bug in hotloop; run it again with HOTLOOP_DEBUG=1 to see where"]
    say("\n".join(lines))
    return INTERNAL_ERROR
