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

from hotloop.judge.findings.hl204_sync_per_step import from_nan_filter, judged
from hotloop.judge.judged_run import Found, JudgedRun


def find(run: JudgedRun) -> Found | None:
    calls = [sync for sync in run.census.syncs if from_nan_filter(sync)]
    site = next((call.site for call in calls if call.site), None)
    advice = "Pass logging_nan_inf_filter=False to TrainingArguments."
    return judged(run, calls, site, advice)
