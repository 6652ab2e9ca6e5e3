"""A what-if, which is not kept: the user asked for those lines. What goes into one is computed all the same."""

from __future__ import annotations

from hotloop.optimizations.optimization import Optimization

EVERY = 100

FEWER_LOGS = Optimization(
    name="fewer_logs",
    summary="What-if: every hundredth of the lines that the script prints and logs in its loop; shows what "
    "writing them costs.",
    parity_class="bitwise",
    settings=(EVERY,),
    values_for=lambda census: (EVERY,) if census.logs or "logs" not in census.seen else (),
    answers=("HL703",),
    source_form="if step % 100 == 0:\n    print(...)",
    leaves="`print` into a file of the script's own",
    over="all",
    what_if=True,
    risks="Lines are lost; what goes into them is computed all the same.",
)
