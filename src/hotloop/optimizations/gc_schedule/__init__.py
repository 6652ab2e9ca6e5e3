"""Python's garbage collection away from the steps.

A full collection looks at every object of the process, and everything waits meanwhile: with a dataset's
index in memory it can take longer than a step. What is alive after the first steps is mostly there to
stay: it is frozen, so that no later collection looks at it. Full collections by Python itself are
replaced by one at the end of every N-th step. Young ones go on as before, and so does every
`gc.collect()` of the script, which now takes as long as what came after the freezing.

Memory stays bounded: where it has grown, what is frozen is looked at again, too.
"""

from __future__ import annotations

from hotloop.optimizations.optimization import Optimization, leaving

GC_SCHEDULE = Optimization(
    name="gc_schedule",
    summary="Python's garbage collection away from the steps: what is alive after the first steps is frozen, "
    "full collections come at the end of every N-th step.",
    parity_class="bitwise",
    settings=(100,),
    values_for=lambda census: (
        (100,) if census.collections is None or census.collections.num else ()
    ),
    answers=("HL804",),
    source_form=(
        "# after the third step\n"
        "gc.collect(); gc.freeze()\n"
        "gc.set_threshold(*gc.get_threshold()[:2], 1_000_000_000)\n"
        "# and at the end of every 100th step\n"
        "gc.collect()"
    ),
    leaves=(
        "a script that turned collections off, set thresholds or froze objects; Python 3.14, which collects in small pieces"
    ),
    expect=leaving("collection_fraction", 0.05, 0.6),
    over="all",
    risks=(
        "Circles of objects that hold tensors are freed later. What was alive after the first steps "
        "and becomes such a circle is freed only where memory has grown by a quarter."
    ),
)
