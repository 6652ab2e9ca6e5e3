"""What a process of somebody's script is told, and where it answers: environment variables and files.

Every name is here, for who starts the process and for what runs in it. Standard library alone. Only
`trial/bootstrap/sitecustomize.py` repeats some, and `trial/watchdog.py` has one more: they import nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable

DOCTOR = "HOTLOOP_DOCTOR"
"""The directory that the probe writes to."""
DOCTOR_STOP = "HOTLOOP_DOCTOR_STOP"
"""What has to be counted before the examination ends the process: steps, as `60`, or seconds of steps, as `60s`."""

STEP_CLOCK = "HOTLOOP_STEP_CLOCK"
"""The directory that the clock of a trial writes to."""
STEP_CLOCK_STOP = "HOTLOOP_STEP_CLOCK_STOP"
STEP_CLOCK_WEIGHTS = "HOTLOOP_STEP_CLOCK_WEIGHTS"
"""Any value: how far the weights came is written down."""
STEP_CLOCK_SAMPLES = "HOTLOOP_STEP_CLOCK_SAMPLES"
"""Any value: the samples of each step are counted, where DataLoaders or hotloop's own trainer give them."""
GIVEN: list[Callable[[int], None]] = []
"""What hotloop's own trainer calls with the samples of a step, before it."""

FIXES = "HOTLOOP_FIXES"
"""The directory that `APPLIED_FILE` goes to."""
FIXES_SETTINGS = "HOTLOOP_FIXES_SETTINGS"
"""JSON: technique -> value."""
TOGGLED = "HOTLOOP_TOGGLED"
"""JSON of a `ToggleSchedule`, where the techniques of the trial are to go on and off."""
LOADER = "HOTLOOP_LOADER"
"""JSON: `site` and `made` of the loader that trains, and the `workdir` that their files are named from."""

SAME_RANDOMNESS = "HOTLOOP_SAME_RANDOMNESS"
"""A directory for notes: seed, so that losses can be compared; after `:` another number than `SEED`."""
BATCH_RNG = "HOTLOOP_BATCH_RNG"
"""A number, of the random numbers that are held fixed for each batch."""
NO_DROPOUT = "HOTLOOP_NO_DROPOUT"
"""Any value: dropout drops nothing."""
LONGEST_FIRST = "HOTLOOP_LONGEST_FIRST"
"""Any value: the first steps of hotloop's own trainer are those of the training that take the most memory."""
RESUME_TRACE = "HOTLOOP_RESUME_TRACE"
"""The directory of one process of `hotloop verify-resume`, with its `plan.json`."""
ROUNDING_NOISE = "HOTLOOP_ROUNDING_NOISE"
"""Size, relative, and seed of the noise put into weights and gradients: `1e-06:1`."""

WITHIN = "HOTLOOP_WITHIN"
"""Directories that may be written, as in PATH; the first takes `OUTSIDE_FILE`."""
PADDING = "HOTLOOP_PADDING"
"""Shifts the stack, by another length in every process."""

OF_A_TRIAL = (
    *(
        STEP_CLOCK,
        STEP_CLOCK_STOP,
        STEP_CLOCK_WEIGHTS,
        STEP_CLOCK_SAMPLES,
        FIXES,
        FIXES_SETTINGS,
        TOGGLED,
        LOADER,
    ),
    *(SAME_RANDOMNESS, BATCH_RNG, NO_DROPOUT, LONGEST_FIRST),
    *(ROUNDING_NOISE, RESUME_TRACE, WITHIN, PADDING),
)
"""What a trial sets, and must not inherit."""

IMPORTS_FILE = "imports.json"
"""What the examined run had imported by its first step: `trial.forking.Imports`."""
APPLIED_FILE = "fixes.jsonl"
TOGGLES_FILE = "turns.json"
OUTSIDE_FILE = "outside.jsonl"

SEED = 1234567
"""The seed of runs whose losses are compared."""
