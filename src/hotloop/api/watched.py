"""`hotloop.watch()`: the training steps that this process makes in a block, looked at from inside.

The probe is that of `hotloop doctor`, and so is the judgement; nothing is tried. Entry points of torch are hooked while
the block runs, and let go of at its end.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from html import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hotloop import __version__
from hotloop.api.recent_steps import RecentSteps
from hotloop.api.run import Run, note
from hotloop.core.child import DOCTOR, OF_A_TRIAL
from hotloop.core.command_run import COMMAND_RUN_FILE, CommandRun, Ended
from hotloop.core.errors import UsageError
from hotloop.core.files import write_json
from hotloop.core.measurement import Measurement, Plan
from hotloop.core.step import WOULD_DO
from hotloop.doctor.directory import make_run_directory
from hotloop.doctor.program import Examined, judged
from hotloop.hardware.environment import read_host
from hotloop.hardware.telemetry import telemetry
from hotloop.judge.diagnose import diagnose
from hotloop.judge.thresholds import ENOUGH_STEPS
from hotloop.report import numbers
from hotloop.report.html import Page
from hotloop.runs.run_page import text_of
from hotloop.runs.stored_run import StoredRun

if TYPE_CHECKING:
    from hotloop.probe.attach.passes import Cost

NOTHING = "nothing was seen yet: the block has not ended"
FROM_OUTSIDE = "hotloop.watch saw nothing: hotloop examines this process from outside"
OF_ANOTHER = "hotloop.watch saw nothing: of several processes it looks at the first one alone"
PROMISED = 0.02
"""Share of the steps' time that watching a loop takes at most, once that has made up for the first steps and the profile."""
_now: list[Watched] = []
"""The one that watches."""


class Watched(Run):
    """What was seen. It prints itself at the end of its block, in a notebook as a page."""

    def __init__(self, *, steps: int | None, out: str | Path | None, show: bool) -> None:
        """As `hotloop.watch`, which says what is raised."""
        if steps is not None and (type(steps) is not int or steps < 1):
            raise UsageError(f"steps={steps!r} is no number of steps", do="give 1 or more, or None")
        self._steps, self._shows = steps, show
        self._out = None if out is None else Path(out)
        self._examined: Examined | None = None
        self._idle: str | None = None
        """Why it looks at nothing, and what is asked of it has nothing in it."""
        self._failure: str | None = None
        self.is_enough = False
        """All the steps that were asked for have been seen."""
        self.recent = RecentSteps()
        self.loaded_s = 0.0
        """What loading this module took for it."""
        self._took: Cost | None = None
        self._beside_s = 0.0
        """What it took before the first step and after the last."""

    def __enter__(self) -> Self:
        began = time.perf_counter()
        self._process, self.is_enough, self._took = os.getpid(), False, None
        self._examined = self._failure = self._idle = None
        if DOCTOR in os.environ or any(name in os.environ for name in OF_A_TRIAL):
            self._idle = FROM_OUTSIDE  # its numbers would be those of two probes
            return self
        if _now:
            raise UsageError(
                "hotloop.watch inside hotloop.watch",
                do="end the block, or the training, of the first one before; it sees the steps of both loops",
            )
        try:
            from hotloop.probe.attach.install import install
            from hotloop.probe.attach.watch import num_ranks
            from hotloop.probe.foreign_process import refuse_untested_torch

            refuse_untested_torch()
        except (ImportError, RuntimeError) as error:  # none, or one that is too old
            raise UsageError(
                f"hotloop.watch needs torch: {error}", do="install torch 2.11 or newer"
            ) from error
        if is_another_process():
            self._idle = OF_ANOTHER
            return self
        if self._out is None:
            self.directory = Path(tempfile.mkdtemp(prefix="hotloop-watch-"))
            weakref.finalize(self, _remove, self.directory, os.getpid())
        else:
            self.directory = make_run_directory(self._out, "watch")
        if is_little := self._steps is not None and self._steps < ENOUGH_STEPS:
            note(
                f"steps={self._steps} is too few to say what would help: give {ENOUGH_STEPS} or more, in a loop of "
                f"{WOULD_DO} or more (10 are warm-up, one is under torch's profiler)"
            )
        self._finders = [*sys.meta_path]
        self._machine = read_host()
        notebook = Path(os.environ.get("JPY_SESSION_NAME") or "notebook").name
        self._run = CommandRun(
            command=tuple(sys.orig_argv) if _kernel() is None else (notebook,),
            workdir=str(Path.cwd()),
            started_at=time.time(),
            hotloop=__version__,
            steps=self._steps,
            # Typed into a shell or a notebook, or of several processes: no command repeats it.
            reads_input=hasattr(sys, "ps1") or _shell() is not None or num_ranks() > 1,
            of_a_block=True,
            variables=self._machine.variables,
        )
        write_json(self.directory / "environment.json", self._machine)
        write_json(self.directory / COMMAND_RUN_FILE, self._run)
        self._watching = ExitStack()
        newest = self._watching.enter_context(telemetry(self.directory))
        self._finish: Callable[[BaseException | None], Cost | None] = lambda error: None
        try:
            self._finish = install(
                self.directory,
                bound="" if self._steps is None else str(self._steps),
                profile_at_bound=is_little,
                ended=self._enough,
                start_s=lambda: time.perf_counter() - began,
                saw=self.recent.saw,
                most_cost=0.9 * PROMISED,  # it is known a moment late
                beside_s=lambda: ((sample := newest()) and sample.sampler_s) or 0.0,
            )
        except BaseException as error:  # Ctrl-C, too, of which nobody is told that leaves the block
            self._let_go(error)
            raise
        _now.append(self)
        self._beside_s = self.loaded_s + time.perf_counter() - began
        self.loaded_s = 0.0  # not of the next block
        return self

    def _enough(self) -> None:
        self.is_enough = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_idle or self._process != os.getpid():  # a child that was forked ends
            return
        from hotloop.probe.attach.own_frames import hide_in

        ended = time.perf_counter()
        _now.remove(self)
        try:
            hide_in(error)
            self._let_go(error)
            self._judge(error)
            self._beside_s += (
                time.perf_counter() - ended + (self._took.end_s if self._took else 0.0)
            )
            if self._shows and not isinstance(error, UsageError):  # which alone is to be read
                self._show()
        except Exception as failed:
            if os.environ.get("HOTLOOP_DEBUG") == "1":
                raise
            self._failure = f"what was seen cannot be shown: {type(failed).__name__}: {failed}"
            note(self._failure)

    def _let_go(self, error: BaseException | None) -> None:
        from hotloop.probe.entry import let_go
        from hotloop.probe.imports import AfterImport

        try:
            self._took = self._finish(error)
        finally:
            let_go()
            # What waits for imports would hook them for nobody.
            sys.meta_path[:] = [
                each
                for each in sys.meta_path
                if each in self._finders or not isinstance(each, AfterImport)
            ]
            self._watching.close()

    def _judge(self, error: BaseException | None) -> None:
        ended: Ended = "enough_steps" if self.is_enough else "by_itself"
        if isinstance(error, KeyboardInterrupt):
            ended = "interrupted"
        elif isinstance(error, Exception) or (isinstance(error, SystemExit) and error.code):
            ended = "failed"  # others end a loop or a program as they should
        self._run = replace(
            self._run,
            ended=ended,
            returncode=0 if ended == "by_itself" else None,
            wall_s=time.time() - self._run.started_at,
        )
        self._examined = judged(self.directory, self._run, self._machine, note)
        if self._examined.refused is not None:
            note(str(self._examined.refused))

    @property
    def is_idle(self) -> bool:
        """It looks at nothing: another one does, or nobody has to."""
        return self._idle is not None

    @property
    def cost(self) -> float | None:
        """What watching took of the steps' time, from the second step on; `None` where that is not known."""
        return None if self._took is None else self._took.share

    def save(self, path: str | Path) -> None:
        """As `Run.save`; where nothing was looked at, the file stays what it is."""
        if self._idle is not None:
            note(f"{path} is not written: {self._idle}")
        else:
            super().save(path)

    def _show(self) -> None:
        if _kernel() is None:
            sys.stderr.write(f"{self}\n")
            return
        from IPython.display import display

        display(self)

    def __str__(self) -> str:
        if self._examined is None:
            return self._idle or self._failure or NOTHING
        return f"{text_of(self._stored(), of_a_block=True)}\n\n{self._what_it_took()}"

    def _what_it_took(self) -> str:
        beside = f"{self._beside_s:.1f} s before and after the steps"
        took, cost = self._took, self.cost
        if took is None or cost is None:
            return f"watching took {beside}"
        said = f"watching took {numbers.percent(cost)} of the steps' time, and {beside}"
        if cost > PROMISED and took.can_be_less and took.beside_share < PROMISED:
            more = "with more `steps`" if self.is_enough else "of a longer loop"
            return f"{said}; {more} it takes less than 2 %"
        return said

    def _repr_html_(self) -> str:
        if self._examined is None:
            return f"<pre>{escape(str(self))}</pre>"
        return super()._repr_html_()

    def _page(self) -> Page:
        page = super()._page()
        if self._out is not None:
            return page
        footer = "Seen by `hotloop.watch`; `out=DIRECTORY` keeps what was recorded."
        return replace(page, title=page.title.replace(self.directory.name, "watch"), footer=footer)

    def _stored(self, known: CommandRun | None = None) -> StoredRun:
        if self._idle is not None:
            nothing = diagnose(Measurement("watch", (), Plan(0, 0, 0.0), read_host()))
            return StoredRun(Path(), diagnosis=nothing, notes=(self._idle,))
        if self._examined is None:
            do = None if self._failure else "ask after `with hotloop.watch() as seen: ...`"
            raise UsageError(str(self), do=do)
        return super()._stored(self._run)


def _remove(directory: Path, process: int) -> None:
    """By the process that made it, not by one that was forked."""
    if process == os.getpid():
        shutil.rmtree(directory, ignore_errors=True)


def is_another_process() -> bool:
    """Whether this is not the first of those that train together. Needs torch."""
    from hotloop.probe.attach.watch import own_rank

    return own_rank() > 0


def _shell() -> Any:
    """Of IPython; `None` elsewhere."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def _kernel() -> Any:
    """Of a notebook; `None` elsewhere."""
    return getattr(_shell(), "kernel", None)
