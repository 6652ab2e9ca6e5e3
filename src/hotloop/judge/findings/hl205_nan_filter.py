"""HL205: the Trainer looks at every loss

What it means. The Hugging Face Trainer's `logging_nan_inf_filter` is on by default. For every
microbatch it asks whether the loss is a finite number, and each question waits for the device.

Evidence. `syncs_per_step`: such questions per step (two per microbatch in transformers 5.23);
`idle_fraction`: share of device time without work; reported from 0.03.

Gain at most. `1 / (1 - idle_fraction)`: the device never idles; as for HL204.

Remedy. `TrainingArguments(logging_nan_inf_filter=False)`. To test it: the same steps with and without,
in turns.

No fix. It is the author's choice: without the filter one loss that is NaN makes the mean in the log NaN.

What can go wrong. Losses that are no numbers then show in the log as they are; the filter only hides
them there, gradients are the same either way.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import exposed_phase, gain_without
from hotloop.judge.findings.hl204_sync_per_step import from_nan_filter, judged, syncs_of

CODE = "HL205"
TITLE = "The Trainer looks at every loss"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    calls = [sync for sync in syncs_of(measurement.census) if from_nan_filter(sync)]
    found = judged(measurement, breakdown, calls)
    if found is None:
        return None
    per_step, idle = found
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(idle),
        gain_is_loose=exposed_phase(measurement, breakdown, "data_wait") >= idle / 2,
        site=next((call.site for call in calls if call.site), None),
        evidence={"syncs_per_step": per_step, "idle_fraction": idle},
        advice="Pass logging_nan_inf_filter=False to TrainingArguments.",
    )
