"""What a command that is being examined does now, from the end of the file that its probe writes."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from hotloop.core.progress import Progress
from hotloop.core.step import StepRecord, steps_of_ranks
from hotloop.core.untrusted import parse_object

TAIL_BYTES = 16_384
EVERY_S = 2.0


class Live:
    """Tells a `Progress` every two seconds; costs a read of a few kilobytes."""

    def __init__(self, directory: Path, progress: Progress) -> None:
        self._directory = directory
        self._progress = progress
        self._told_at = 0.0

    def tick(self, seconds: float) -> None:
        """Called while the command runs. What cannot be read is not told."""
        if seconds - self._told_at < EVERY_S:
            return
        self._told_at = seconds
        try:
            records = self._newest()
        except OSError:
            return
        if not records:
            self._progress("no step yet", 0, None, f"{seconds:.0f} s")
            return
        # No share: warm-up and profiled steps are not among those that `--steps` counts.
        done = records[-1].step + 1
        pace = f"{1000 * median(record.wall_s for record in records):.3g} ms a step"
        self._progress(f"step {done:,}", done, None, pace)

    def _newest(self) -> list[StepRecord]:
        files = steps_of_ranks(self._directory)
        if not files:
            return []
        with files[min(files)].open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")
        found = []
        for line in lines[1 if size > TAIL_BYTES else 0 : -1]:
            try:
                found.append(StepRecord.from_mapping(parse_object(line)))
            except (ValueError, TypeError):
                continue
        return found
