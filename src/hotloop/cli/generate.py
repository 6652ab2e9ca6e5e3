"""`hotloop generate RUN --prompt TEXT`"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import click

from hotloop.cli.output import is_unread, json_option, note, printable, say, write_object
from hotloop.core.errors import UsageError
from hotloop.core.untrusted import read_bytes

if TYPE_CHECKING:
    import torch

    from hotloop.train.trained import Text

Weights = Literal["averaged", "last"]


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--prompt",
    multiple=True,
    help='Text to continue; may be given several times. An empty one starts a document. [default: "def "]',
)
@click.option("--prompts", metavar="FILE", type=click.Path(path_type=Path), help="One a line.")
@click.option("--count", default=1, show_default=True, type=click.IntRange(min=1), help="Texts of each prompt.")  # fmt: skip
@click.option("--tokens", default=100, show_default=True, type=click.IntRange(min=1), help="Most tokens to add.")  # fmt: skip
@click.option("--temperature", default=0.8, show_default=True, type=click.FloatRange(min=0), help="0 takes the likeliest token.")  # fmt: skip
@click.option("--top-k", default=50, show_default=True, type=click.IntRange(min=0), help="Choose among this many likeliest; 0 for all.")  # fmt: skip
@click.option("--top-p", default=1.0, show_default=True, type=click.FloatRange(0, 1, min_open=True), help="Of these, among the likeliest that together have this probability.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Of the first text; the next one has the next.")  # fmt: skip
@click.option(
    "--weights",
    type=click.Choice(["averaged", "last"]),
    help="The mean kept by `averaging`, or those of the last step. Default: averaged where it is kept.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that a fine-tuned model brings with it; it can do here whatever you can.")  # fmt: skip
@click.option("--compile", "compiled", is_flag=True, help="Compile first what makes each next token. On a CPU it was no faster.")  # fmt: skip
@json_option("Write prompts and texts here; `-` for stdout.")
def generate(
    run: Path,
    prompt: tuple[str, ...],
    prompts: Path | None,
    count: int,
    tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    weights: Weights | None,
    device: str,
    trust_remote_code: bool,
    compiled: bool,
    json_file: str | None,
) -> None:
    """Continue prompts with the newest checkpoint of RUN, and show the text as it is made. A fine-tuned decoder answers them."""
    asked = _asked(prompt, prompts, count, temperature, top_p)
    from hotloop.train.trained import Text

    texts = [Text(each, seed + i) for i, each in enumerate(asked)]
    how = {"num_tokens": tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    written, told = _writer(run, texts, weights, device, compiled, how, trust_remote_code)
    rate = _show_all(written, texts, json_file, told["compile_s"])
    if json_file is not None:
        fields = ("prompt", "seed", "text", "tokens", "ended")
        found = {
            "schema": "hotloop.generate/1",
            **told,
            "prompt": texts[0].prompt,
            "text": texts[0].text,
            "texts": [{name: getattr(text, name) for name in fields} for text in texts],
            "tokens_per_s": rate,
        }
        write_object(found, json_file)
    is_read = json_file is not None or not is_unread()
    if is_read and any(text.ended == "interrupted" for text in texts):
        raise KeyboardInterrupt


def _asked(
    given: tuple[str, ...], file: Path | None, count: int, temperature: float, top_p: float
) -> list[str]:
    """The prompts, `count` times each. Raises `UsageError` for what makes no text."""
    if temperature != 0 and not 0.01 <= temperature <= 100:  # also refuses nan
        raise UsageError(
            f"a temperature of {temperature} makes no text", do="use 0, or 0.01 to 100"
        )
    if not 0 < top_p <= 1:  # nan
        raise UsageError(f"a top-p of {top_p} makes no text", do="use more than 0, up to 1")
    if temperature == 0 and count > 1:
        do = "leave `--count` out, or raise `--temperature`"
        raise UsageError("at temperature 0 all texts of a prompt are the same", do=do)
    asked = [*given, *(_lines(file) if file else ())] or ["def "]
    if any("\ud800" <= c <= "\udfff" for c in "".join(asked)):
        raise UsageError("the prompt is not UTF-8 text")
    return [each for each in asked for _ in range(count)]


def _writer(
    run: Path,
    texts: list[Text],
    weights: Weights | None,
    device: str,
    compiled: bool,
    how: dict[str, Any],
    trusted: bool,
) -> tuple[Iterator[None], dict[str, Any]]:
    """What adds to `texts` piece by piece, by a model that is loaded now, and what is said of the model."""
    from hotloop.core.causal_config import CAUSAL_TASKS
    from hotloop.core.settings import task_of
    from hotloop.hardware.device import pick_device
    from hotloop.train.trained import load_trained, write_texts

    if (run / "config.yaml").is_file() and task_of(run / "config.yaml") in CAUSAL_TASKS:
        from hotloop.finetune.answers import write_answers

        if weights is not None:
            raise UsageError("--weights is of runs that train on text", where=str(run), do="leave it out: `model/` has those that were kept")  # fmt: skip
        compiled = compiled and _can_compile(pick_device(device, asked_by="--device"))
        written = write_answers(run, texts, device=device, warn=note, trusted=trusted, compiled=compiled, **how)  # fmt: skip
        next(written)  # reads the model
        began = time.perf_counter()
        next(written)  # compiles
        seconds = time.perf_counter() - began if compiled else None
        return written, {"step": None, "weights": "exported", "notes": [], "compile_s": seconds}
    if trusted:
        raise UsageError("--trust-remote-code is of fine-tuned runs", where=str(run), do="leave it out")  # fmt: skip
    trained = load_trained(run, device, weights=weights)
    for each in trained.notes:
        note(each)
    if weights is None and trained.weights == "averaged":
        note("with the averaged weights; `--weights last` takes the others")
    compiled = compiled and _can_compile(trained.model.tokens.weight.device)
    began = time.perf_counter()
    written = write_texts(trained, texts, compiled=compiled, **how)
    next(written)  # reads the prompts, and compiles
    seconds = time.perf_counter() - began if compiled else None
    told = {"step": trained.step, "weights": trained.weights, "notes": [*trained.notes]}
    return written, {**told, "compile_s": seconds}


def _can_compile(device: torch.device) -> bool:
    from hotloop.hardware.device import why_compile_cannot_run

    why = why_compile_cannot_run(device)
    note(f"--compile is off: {why}" if why else "compiling takes seconds to minutes before the first token")  # fmt: skip
    return why is None


def _show_all(
    written: Iterator[None], texts: list[Text], json_file: str | None, compile_s: float | None
) -> float:
    """Show the texts as they are made, up to Ctrl-C, or as long as somebody reads them; returns tokens per second."""
    screen = _Screen(texts, quiet=json_file == "-")
    began = time.perf_counter()
    with _noted() as signals:
        for _ in written:
            screen.show()
            if signals or (json_file is None and is_unread()):
                break
        for text in texts:
            text.ended = text.ended or "interrupted"
        screen.show()
    made = sum(text.tokens for text in texts)
    rate = made / (time.perf_counter() - began)
    after = f", after compiling for {compile_s:.1f} s" if compile_s is not None else ""
    say(f"{made} tokens, {rate:,.0f} tokens/s{after}")
    return rate


def _lines(file: Path) -> list[str]:
    try:
        lines = read_bytes(file).decode("utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = "not UTF-8 text" if isinstance(error, UnicodeError) else error.strerror
        raise UsageError(f"the prompts cannot be read: {why}", where=str(file)) from error
    empty = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    if empty is not None:
        raise UsageError("an empty prompt", where=f"{file}:{empty}", do="each line is a prompt")
    return [line.removesuffix("\r") for line in lines]


@contextmanager
def _noted() -> Iterator[list[int]]:
    """Ctrl-C or SIGTERM, once it came; a second one interrupts at once.

    An exception between any two lines could not say whether a piece was written, or counted, already.
    """
    came: list[int] = []
    before: dict[int, Any] = {}

    def note_it(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(number, before[number])

    for each in (signal.SIGINT, signal.SIGTERM):
        if (handler := signal.getsignal(each)) is not signal.SIG_IGN:
            before[each] = handler
            signal.signal(each, note_it)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Screen:
    """Standard output, one text below the other; the first that has not ended grows."""

    def __init__(self, texts: list[Text], *, quiet: bool) -> None:
        self._texts = texts
        self._front = len(texts) if quiet else 0
        self._num_begun = self._num_shown = 0

    def show(self) -> None:
        """Write what is new."""
        while self._front < len(self._texts):
            text = self._texts[self._front]
            if not text.tokens and text.ended in (None, "interrupted"):
                break
            if self._num_begun == self._front:
                self._num_begun += 1
                if len(self._texts) > 1:
                    self._write(f"--- {self._front + 1} of {len(self._texts)}, seed {text.seed}\n")
            whole = text.prompt + text.text
            self._write(whole[self._num_shown :])
            self._num_shown = len(whole)
            if text.ended is None:
                break
            self._write("\n")
            self._front, self._num_shown = self._front + 1, 0

    def _write(self, text: str) -> None:
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
