"""HL101: the step waits for data

What it means. The training process stands still until the next batch is ready. While it waits the
model computes nothing, so every second of it is lost. Why the batch is late could not be told; where
it can, another finding names it (HL102 to HL106, HL109, HL110). On a machine that other programs fill it
often cannot: making a batch may only have waited for a CPU.

Evidence. `data_wait_fraction`: seconds in the phase `data_wait` over wall seconds, waits for the first
batch of an epoch left out where HL108 names them; on an accelerator at most the share in which it idled;
reported from 0.1, from 0.05 where no loader was seen. `num_workers`: workers of the loader, where it was seen.
`other_programs_fraction`: share of the machine's CPUs that other programs kept busy, where that is what
hides the cause. `in_memory`: whole batches are copied from memory, where that is all that making one does. `new_iterators`: how many the
loader made, where it made one for each batch.

Gain at most. `1 / (1 - data_wait_fraction)`: the step without any wait. Reached when workers prepare a
batch in less time than the rest of the step takes and a core is free for them; with fewer cores the
preparation takes its time from the training instead.

Remedy. `loader_workers`: prepare batches in worker processes while the model computes. Where workers
run already, more of them, cheaper transforms, or data that is prepared once and stored. On a crowded
machine a run alone does not show whether workers would help: trying them in turns does. To test it: change `num_workers`, run as many steps again, and compare the seconds per step of several such pairs.

What can go wrong. Workers cost memory (one copy of the dataset each, with spawn) and time to start.
Randomness drawn in the main process moves into the workers: the batches, and the losses, change.
More workers than free cores make it slower. Very cheap batches cost more to send than to make.
"""

from __future__ import annotations

from hotloop.core.census import LoaderUse
from hotloop.judge.data_wait import OTHER_PROGRAMS, Waiting, why_waiting
from hotloop.judge.judged_run import Found, JudgedRun


def find(run: JudgedRun) -> Found | None:
    waiting = why_waiting(run)
    if waiting is None or waiting.cause not in ("unknown", "others", "copying", "iterator"):
        return None
    settings = run.census.loader
    workers = waiting.loader.num_workers if waiting.loader else settings.get("num_workers")
    site = waiting.loader.site if waiting.loader else settings.get("site")
    if site is None:
        site = run.first_line("data_wait")
    evidence: dict[str, float | int | str | None] = {
        "data_wait_fraction": waiting.share,
        "num_workers": workers if isinstance(workers, int) else None,
    }
    if waiting.cause == "others":
        evidence[OTHER_PROGRAMS] = run.census.foreign_busy
    if waiting.cause == "copying" and waiting.loader is not None:
        evidence["in_memory"] = str(waiting.loader.in_memory)
    if waiting.cause == "iterator" and waiting.loader is not None:
        evidence["new_iterators"] = waiting.loader.num_epochs
    return Found(
        share=waiting.share,
        site=site if isinstance(site, str) else None,
        evidence=evidence,
        advice=_advice(waiting, workers, run),
    )


def _advice(waiting: Waiting, workers: object, run: JudgedRun) -> str:
    if waiting.cause == "others":
        return _on_a_crowded_machine(waiting.loader, run.census.foreign_busy or 0.0)
    if waiting.cause == "iterator":
        return (
            "Each batch is the first of a new iterator (`next(iter(loader))`): what a loader does once per epoch, such as "
            "shuffling and starting workers, is done for each. Make the iterator once, outside of the loop."
        )
    if waiting.cause == "copying":
        return (
            "Whole batches are copied from memory, which workers do no faster. Keep the data in fewer "
            "bytes (uint8, float16), or copy the next batch in a thread while the model computes."
        )
    if workers:
        return (
            f"{workers} workers run and batches are still late. Try twice as many, then "
            "prefetch_factor=4, and look at what the dataset does in them."
        )
    if run.is_foreign and workers is None:
        return "Make batches in a DataLoader with num_workers >= 1 while the model computes."
    return "Prepare batches in worker processes while the model computes."


def _on_a_crowded_machine(loader: LoaderUse | None, foreign_busy: float) -> str:
    more = "more workers" if loader is not None and loader.num_workers else "workers"
    advice = (
        f"Other programs kept {100 * foreign_busy:.0f} % of the machine's CPUs busy, so this run does not "
        f"show whether {more} would help. Trying them in turns does (`loader_workers`), best when the machine is quiet."
    )
    if loader is not None and loader.in_memory:
        return advice
    before = " what comes before the random part" if loader and loader.draws_random else " them"
    return f"{advice} Cheaper samples help either way: decode{before} once, smaller, and store the result."
