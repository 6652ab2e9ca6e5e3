"""How a kept fix is written into source: as its technique says, in one form for all of its places."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.ledger import TriedFix
from hotloop.doctor.patch.source import Unsafe
from hotloop.doctor.patch.taken import Taken
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.source_edit import SourceEdit


def form_of(fix: TriedFix, taken: Sequence[Taken]) -> SourceEdit:
    """taken: where it took effect. Raises `Unsafe` where it has no form, or one for each place."""
    form = CATALOGUE[fix.name].source_edit
    if form is None:
        raise Unsafe("where it belongs depends on the script")
    if not taken:
        raise Unsafe("the trials did not say where it took effect")
    found = [form(fix.value, each.facts) for each in taken]
    for each in found:
        if isinstance(each, str):
            raise Unsafe(each)
    if any(each != found[0] for each in found):
        raise Unsafe("it would be written otherwise at each of its places")
    assert not isinstance(found[0], str)
    return found[0]
