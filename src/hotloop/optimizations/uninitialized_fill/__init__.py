"""Deterministic algorithms without the filling of memory just allocated, which every program writes before it reads it."""

from __future__ import annotations

from hotloop.optimizations.optimization import Optimization, leaving
from hotloop.optimizations.source_edit import SetUp

FILLING = "fill_uninitialized_memory"

UNINITIALIZED_FILL = Optimization(
    name="uninitialized_fill",
    summary="Deterministic algorithms that do not fill memory which was just allocated.",
    parity_class="bitwise",
    settings=(False,),
    values_for=lambda census: (False,) if census.has_switch(FILLING) else (),
    needs="`torch.use_deterministic_algorithms(True)`",
    answers=("HL808",),
    source_form="torch.utils.deterministic.fill_uninitialized_memory = False",
    source_edit=lambda value, facts: SetUp(
        (f"torch.utils.deterministic.{FILLING} = {bool(value)}",), (FILLING,)
    ),
    leaves="a script that sets `fill_uninitialized_memory` itself, or asks for no deterministic algorithms",
    expect=leaving("fill_fraction", 0.0, 0.5),
    risks="A script that reads what it never wrote (`torch.empty`) no longer reads NaN there, but what was in that memory.",
)
