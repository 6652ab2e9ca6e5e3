"""HL804: Python collects garbage during the steps

What it means. Python stops everything to look for objects that refer to each other in circles. With
many objects alive a full collection takes long; it helps a training little, since tensors are freed
without it.

Evidence. `collection_fraction`: exposed seconds of collections over wall time; reported from 0.02.
`num_collections`, `num_full`, `full_fraction`: how many, and the part of full ones, which count from three
on, and not in steps that proved to be a start. Site: where
most full ones began; where that was not seen, and they come at least every second step, the line most
seen outside of the phases.

Gain at most. `1 / (1 - collection_fraction)`: no collection.

Remedy. `gc_schedule`: after the third step `gc.collect(); gc.freeze()`, so that what is alive by then is
never looked at again, full collections by Python off (`gc.set_threshold(*gc.get_threshold()[:2],
1_000_000_000)`; not `gc.disable()`, with which memory has no bound), and one `gc.collect()` every hundred
steps; none per step. Fewer small Python objects in the dataset (one array
instead of lists of dicts). To test it: the same steps with it, in turns.

What can go wrong. Circles that hold tensors are then freed late: memory grows until the next collection.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun, few_full
from hotloop.judge.thresholds import COLLECTING


def find(run: JudgedRun) -> Found | None:
    seen = run.census.collections
    if seen is None:
        return None
    share, full = run.collection_share(), run.full_share()
    share = run.exposed(share - full if few_full(seen) else share)
    if share < COLLECTING:
        return None
    site, lines = seen.site, run.lines("unattributed")
    if site is None and seen.num_full >= run.breakdown.counted_steps / 2:
        # So often only where the script asks for it.
        site = next((line.site for line in lines if line.fraction >= share / 2), None)
    return Found(
        share=share,
        site=site,
        evidence={
            "collection_fraction": share,
            "num_collections": seen.num,
            "num_full": seen.num_full,
            "full_fraction": full,
        },
        optimization="gc_schedule",
        advice="After the third step call gc.collect() and gc.freeze(); then gc.set_threshold("
        "*gc.get_threshold()[:2], 1_000_000_000), and gc.collect() every hundred steps.",
    )
