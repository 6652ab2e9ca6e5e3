"""hotloop finds what holds a PyTorch training run back, fixes it, and proves it.

Importing this package changes nothing in the process and loads neither torch nor any dependency.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from hotloop.api.fit import Fitted
    from hotloop.api.run import Run
    from hotloop.api.watched import Watched

__version__ = "0.1.0"

_step_ended: Callable[[], object] | None = None
"""Set by the probe in a process that is watched."""


def step() -> None:
    """Say that a training step ends here, for `hotloop doctor` where it can not tell by itself.

    Costs nothing worth measuring in a process that nobody watches.
    """
    if _step_ended is not None:
        _step_ended()


def watch(*, steps: int | None = None, out: str | Path | None = None, show: bool = True) -> Watched:
    """Look at the training steps that are made in `with hotloop.watch() as seen: train()`, whatever loop makes them.

    steps: look no longer than at so many, after the warm-up; the loop goes on. To say what would help takes 30 and a second of
    them, in a loop of 50 steps or more: 10 are warm-up, one is under torch's profiler. out: a new directory to keep what was recorded in.
    show: print what was found at the end of the block, unless a `UsageError` ended it. Afterwards `seen.findings`, `seen.diagnosis`,
    `seen.save("run.html")` and `seen.to_dict()`. Does nothing in a process that `hotloop doctor` examines, or that is not the first
    of a training: then nothing was found. Raises `UsageError` inside another such block, without torch, or where `out` is
    there already.
    """
    began = time.perf_counter()
    from hotloop.api.watched import Watched

    seen = Watched(steps=steps, out=out, show=show)
    seen.loaded_s = time.perf_counter() - began
    return seen


def doctor(
    command: str | Sequence[str],
    *,
    budget: str | None = None,
    out: str | Path | None = None,
    options: Sequence[str] = (),
) -> Run:
    """`hotloop doctor` of a command or a notebook, in a process of its own: `hotloop.doctor("python train.py", budget="5m")`.

    command: words, one text as for a shell, or the name of an `.ipynb`, which needs nbclient. out: where the run is kept, and
    goes on. options: others of the command. Returns the run: its `findings`, what was `kept`, its `speedup` and
    `interval`, the `verdict` with all of it, the `diff`, and `apply()`. Raises `UsageError`, `EnvironmentFailed` and `CommandFailed` as the command ends.
    """
    from hotloop.api.run import doctor

    return doctor(command, budget, out, options)


def compare(
    baseline: str | Sequence[str],
    candidate: str | Sequence[str],
    *,
    steps: int = 60,
    warmup_steps: int = 20,
    same_samples: bool = False,
    budget: str | None = None,
    out: str | Path | None = None,
) -> Run:
    """Which of two commands trains faster: `hotloop.compare("python train.py", "python train.py --fused")`.

    Each runs for so many steps in 4 to 10 interleaved pairs of fresh processes, until these decide; what they write is thrown
    away. same_samples: a step of one takes as many samples as one of the other, also where no data loader shows it. budget: but
    for the first, no pair is begun that would not fit into it (`"5m"`). out: where the run is kept, and goes on. Returns the run:
    its `speedup`, `interval`, and the `verdict` with the outcome and whether both learn the same. Raises `UsageError`, `EnvironmentFailed`,
    `CommandFailed`, and `Interrupted` after Ctrl-C.
    """
    from hotloop.api.run import compare

    return compare(baseline, candidate, steps, warmup_steps, same_samples, budget, out)


def fit(
    model: Any,
    data: Any,
    *,
    task: str | None = None,
    validation: Any = None,
    loss: Callable[[Any, Any], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    epochs: int = 3,
    batch: int | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    stretch_schedule: bool = False,
) -> Fitted:
    """Train with hotloop's loop: its precision, fused optimizer, checkpoints, and a run that goes on after a kill.

    `hotloop.fit(module, dataset, loss=F.cross_entropy)` trains a `torch.nn.Module` in place. An example is (input, ...,
    target), or a dict that the model is called with; without `loss` the model returns its loss, or has it as `.loss`.
    `hotloop.fit("DIR", "tweets.csv", task="classification")` fine-tunes a model of transformers. validation: other examples,
    another file, or a part of this one (0.1; 0 for none). settings: any of the config's, by name:
    `{"optimizer.learning_rate": 1e-3}`. out: the run [runs/fit]; the same call goes on in it. stretch_schedule: one with more
    `epochs` does so, too, whose learning rates until now would have been others. Raises `UsageError`,
    `EnvironmentFailed`, and `Interrupted` after Ctrl-C, which saves.
    """
    from hotloop.api.fit import fit

    return fit(model, data, task, validation, loss, collate, epochs, batch, out, settings, stretch_schedule)  # fmt: skip


def load_run(directory: str | Path) -> Run:
    """What a run directory of any hotloop command holds. Raises `UsageError` where it is none."""
    from hotloop.api.run import Run

    run = Run(directory)
    str(run)
    return run


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext hotloop`: a cell that begins with `%%hotloop`, or `%%hotloop 200`, runs in `hotloop.watch(steps=200)`."""

    def watched(line: str, cell: str) -> None:
        words = line.strip()
        if words and not (words.isdecimal() and int(words)):
            from IPython.core.error import UsageError  # shown without a traceback

            all_steps = "`%%hotloop 200` looks at 200, `%%hotloop` at all"
            raise UsageError(f"`%%hotloop {words}` names no number of steps: {all_steps}")
        # The magic is a line of the cell, too; where another one follows, that has to come first.
        indent = cell[: len(cell) - len(cell.lstrip(" \t"))]
        code = cell if cell.lstrip().startswith("%%") else f"{indent}#\n{cell}"
        # It is compiled under the number of the next cell, where IPython counts on before a cell runs.
        count, shell.execution_count = shell.execution_count, len(shell.user_ns["In"]) - 1
        # What is raised leaves this cell, too, and is shown then, behind what was found.
        shows = shell.showtraceback, shell.showsyntaxerror
        shell.showtraceback = shell.showsyntaxerror = lambda *args, **kwargs: None
        try:
            with watch(steps=int(words) if words else None):
                shell.run_cell(code).raise_error()
        finally:
            shell.showtraceback, shell.showsyntaxerror = shows
            shell.execution_count = count

    shell.register_magic_function(watched, "cell", "hotloop")
