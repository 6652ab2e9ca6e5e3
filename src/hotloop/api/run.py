"""What a run directory holds, for a program or a notebook; and the doctor, started from one."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from codecs import getincrementaldecoder
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hotloop.core.child import STEP_CLOCK_SAMPLES
from hotloop.core.command_run import CommandRun, describe_end
from hotloop.core.errors import CommandFailed, EnvironmentFailed, ExitCode, Interrupted, UsageError
from hotloop.core.files import finite
from hotloop.core.judgement import Diagnosis, Finding, Verdict
from hotloop.core.progress import plain_lines
from hotloop.doctor.starting_point import (
    BEFORE,
    ISOLATION_FILE,
    edited_files,
    named_files,
    start_of,
)
from hotloop.doctor.trial_costs import budget_of
from hotloop.report.html import Page, render_html, write_html
from hotloop.runs.run_page import object_of, page_of, text_of
from hotloop.runs.stored_run import StoredRun, read_run
from hotloop.trial.arm import Arm
from hotloop.trial.attached import SignalDetector
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import compare_arms

HEIGHT = 640
"""Pixels of the page in a notebook."""
TIMEOUT_S = 900.0
"""For one process of a comparison, its start included."""
EXECUTES = "import sys; from nbclient.cli import main; main(sys.argv[1:])"
"""Runs a notebook from its beginning."""
MOST_SAID = 20_000
"""Characters of what the doctor has said last that are searched for its error."""


class Run:
    """One run directory. In a notebook it shows itself as a page, printed it is what the terminal shows."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    @property
    def diagnosis(self) -> Diagnosis:
        """Where a step's time goes, and what holds it back. Raises `UsageError` where nothing of the run was judged."""
        found = self._stored().diagnosis
        if found is None:
            raise UsageError("this run has no diagnosis", where=str(self.directory))
        return found

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What could be better, the largest gain first."""
        return self.diagnosis.findings

    @property
    def kept(self) -> tuple[str, ...]:
        """The fixes that were proven, together; empty where none was, or none was tried."""
        ledger = self._stored().ledger
        return ledger.kept if ledger is not None else ()

    @property
    def verdict(self) -> Verdict | None:
        """Of what was kept on fresh pairs, or of two arms that were compared: its `ratio`, `ratio_low` and `ratio_high`."""
        found = self._stored()
        return found.ledger.together if found.ledger is not None else found.verdict

    @property
    def speedup(self) -> float | None:
        """How many times as fast what was kept is, or the second of two commands: the verdict's `ratio`. `None` where nothing
        was kept, or nothing is claimed. A gain near the smallest that the pairs can show is too large, on average.
        """
        found = self._claimed()
        return None if found is None else found.ratio

    @property
    def interval(self) -> tuple[float, float] | None:
        """In which `speedup` lies, with the verdict's `confidence`."""
        found = self._claimed()
        if found is None or found.ratio_low is None or found.ratio_high is None:
            return None
        return found.ratio_low, found.ratio_high

    @property
    def diff(self) -> str:
        """The patch of what was kept; empty where there is none."""
        return self._page().patch

    def apply(self) -> tuple[Path, ...]:
        """Edit the files of `diff`, as `hotloop doctor --apply` does, and return them; `unpatched/` of the run has them as they were.

        Raises `UsageError` where there is nothing to apply, or a file has changed since, and `EnvironmentFailed`.
        """
        from hotloop.doctor.patch.write import apply_kept  # loads libcst

        return apply_kept(self._stored().ledger, self.directory.resolve())

    def save(self, path: str | Path) -> None:
        """Write the page to `path`. Raises `EnvironmentFailed` where the disk refuses."""
        write_html(Path(path), self._page())

    def to_dict(self) -> dict[str, Any]:
        """All that was found, as `hotloop report --json` has it."""
        found: dict[str, Any] = finite(object_of(self._stored()))
        return found

    def __str__(self) -> str:
        return text_of(self._stored())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        page = escape(render_html(self._page()))
        return f'<iframe srcdoc="{page}" width="100%" height="{HEIGHT}" frameborder="0"></iframe>'

    def _claimed(self) -> Verdict | None:
        found, ledger = self.verdict, self._stored().ledger
        if found is None or found.outcome == "incomparable" or found.doubts:
            return None
        return None if ledger is not None and not ledger.kept else found

    def _page(self) -> Page:
        return page_of(self._stored())

    def _stored(self, known: CommandRun | None = None) -> StoredRun:
        return read_run(self.directory, known=known)


def _seconds_of(budget: str | None) -> float:
    try:
        return budget_of("none" if budget is None else str(budget))
    except ValueError as error:
        raise UsageError(str(error), where="budget") from error


def _words(command: str | Sequence[str], example: str) -> list[str]:
    if isinstance(command, os.PathLike):
        command = [os.fspath(command)]
    try:
        words = shlex.split(command) if isinstance(command, str) else [*map(str, command)]
    except ValueError as error:
        what = f"the command cannot be read: {str(error).lower()}"
        raise UsageError(what, where=str(command), do=example) from error
    if isinstance(command, str) and command.endswith(".ipynb") and Path(command).is_file():
        words = [command]  # its name may have spaces
    if not words:
        raise UsageError("there is no command to examine", do=example)
    if len(words) == 1 and words[0].endswith(".ipynb"):
        if not Path(words[0]).is_file():
            raise UsageError("no such notebook", where=words[0])
        if find_spec("nbclient") is None:
            raise UsageError("a notebook is executed by nbclient, which is not installed", do="pip install nbclient ipykernel")  # fmt: skip
        words = [sys.executable, "-c", EXECUTES, *words]
    if words[0] in ("python", "python3"):
        words[0] = sys.executable  # that of the kernel, whatever stands first in PATH
    return words


def doctor(
    command: str | Sequence[str], budget: str | None, out: str | Path | None, options: Sequence[str]
) -> Run:
    """As `hotloop.doctor`."""
    words = _words(command, 'hotloop.doctor("python train.py")')
    _seconds_of(budget)
    options = shlex.split(options) if isinstance(options, str) else [*options]
    directory = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="hotloop-doctor-"))
    if out is None:
        directory.rmdir()  # the doctor makes it
    asked = [] if budget is None else ["--budget", str(budget)]
    asked += [*options, "--out", str(directory)]
    line = [sys.executable, "-m", "hotloop", "doctor", *asked, "--", *words]
    detector = SignalDetector()
    with subprocess.Popen(line, stderr=subprocess.PIPE) as process:
        try:
            said = _relayed(process)
        except KeyboardInterrupt:
            time.sleep(0.5)  # whoever was told with us has ended by then
            if not detector.was_reached():
                process.send_signal(signal.SIGINT)
            _relayed(process)  # its trials end, and what was seen by then is judged
            raise
        finally:
            detector.release()
    lines = said.splitlines() or [""]
    error = max((n for n, each in enumerate(lines) if each.startswith("error: ")), default=-1)
    what = lines[error].removeprefix("error: ")
    do = ("\n".join(lines[error + 1 :]).strip() if error >= 0 else "") or "see above"
    match process.returncode:
        case ExitCode.FINE | ExitCode.FOUND | ExitCode.INCONCLUSIVE if directory.is_dir():
            return Run(directory)
        case ExitCode.USAGE:
            raise UsageError(what, do=do)
        case ExitCode.ENVIRONMENT:
            raise EnvironmentFailed(what, do=do)
        case ExitCode.COMMAND_FAILED:
            ended = Run(directory).to_dict()["doctor"]["returncode"]
            if error < 0 and ended:
                what = f"the command {describe_end(ended)}"
            raise CommandFailed(what, where=str(directory), returncode=ended or 1)
        case ExitCode.RESUMABLE:
            raise Interrupted("interrupted", where=str(directory), do="the same call goes on")
        case code:
            what = f"`hotloop doctor` {describe_end(code)}: {what}"
            raise EnvironmentFailed(what, where=str(directory), do=do)


def _relayed(process: subprocess.Popen[bytes]) -> str:
    """Show what it writes to standard error until it has ended; returns the last of it. What it leaves running holds that open."""
    assert process.stderr is not None
    decode, said = getincrementaldecoder("utf-8")("replace").decode, ""
    while True:
        has_ended = process.poll() is not None
        ready, _, _ = select.select([process.stderr], [], [], 0.0 if has_ended else 0.2)
        data = os.read(process.stderr.fileno(), 1 << 16) if ready else b""
        if not data and (ready or has_ended):
            process.wait()
            return said
        text = decode(data)
        sys.stderr.write(text)
        said = (said + text)[-MOST_SAID:]


def compare(
    baseline: str | Sequence[str],
    candidate: str | Sequence[str],
    steps: int,
    warmup_steps: int,
    same_samples: bool,
    budget: str | None,
    out: str | Path | None,
) -> Run:
    """As `hotloop.compare`."""
    budget_s = _seconds_of(budget)
    workdir, began = Path.cwd(), time.monotonic()
    pairs_began = [began]

    def is_up(verdict: Verdict, num_new: int) -> bool:
        """Where another pair as long as the last one would not fit."""
        now = time.monotonic()
        if up := now - began + now - pairs_began[-1] > budget_s:
            note(f'another pair does not fit into {budget}; `out="{directory}"` goes on')
        return up

    arms = [
        Arm(
            name,
            tuple(_words(command, 'hotloop.compare("python train.py", "python faster.py")')),
            "step_clock",
            # Where loaders give samples, they are the work: a larger batch is not a slower step.
            env={STEP_CLOCK_SAMPLES: "1"},
            workdir=workdir,
            sandboxed=True,
        )
        for name, command in (("baseline", baseline), ("candidate", candidate))
    ]
    directory = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="hotloop-compare-"))
    _refuse_edited(directory, workdir, [word for arm in arms for word in arm.command])
    compare_arms(
        *arms,
        directory=directory / "trials",
        plan=TrialPlan(warmup_steps=warmup_steps, steps=steps, timeout_s=TIMEOUT_S),
        parity_class="reduced_precision",
        equal_steps=same_samples or arms[0].command == arms[1].command,
        workdir=start_of(directory, workdir),
        stop_now=is_up,
        # More pairs do not remove such doubts.
        goes_on=lambda verdict: not (verdict.unit == "step" and verdict.doubts),
        progress=plain_lines(lambda text: note(f"{text}, {time.monotonic() - began:.0f} s in all")),
        on_pair=lambda pair: pairs_began.append(time.monotonic()),
    )
    return Run(directory)


def _refuse_edited(directory: Path, workdir: Path, words: Sequence[str]) -> None:
    """Raises `UsageError` where the pairs that `directory` has are of other sources."""
    edited = edited_files(directory, workdir, words, since=directory / BEFORE / ISOLATION_FILE)
    caller = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    if caller.name not in {Path(word).name for word in words}:  # it may ask for more time
        edited = [name for name in edited if workdir / name != caller.resolve()]
    if edited:
        raise UsageError(
            f"{named_files(edited)} changed after this comparison began: its pairs are of other sources",
            where=str(directory),
            do="choose another directory, or remove this one",
        )


def note(text: str) -> None:
    sys.stderr.write(f"hotloop: {text}\n")
