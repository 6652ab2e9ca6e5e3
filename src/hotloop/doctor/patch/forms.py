"""How a kept fix is written into source, in one form for all of its places; where no diff can be made, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop.core.ledger import TriedFix
from hotloop.doctor.patch.applied_places import Taken
from hotloop.doctor.patch.source import Unsafe
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.optimization import Optimization
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


def words_for(
    technique: Optimization, value: Any, edit: SourceEdit | None, taken: Sequence[Taken], why: str
) -> str:
    """A sentence or two for a reader who edits by hand."""
    sites = list(dict.fromkeys(each.frames[0].site for each in taken if each.frames))
    at = f"at {' and '.join(sites[:3])}: " if sites else ""
    what = _what(technique, value, edit, taken)
    return f"{at}{what}{'' if what.endswith(chr(10)) else '. '}Not edited: {why}."


def _what(
    technique: Optimization, value: Any, edit: SourceEdit | None, taken: Sequence[Taken]
) -> str:
    trainer = any((each.inside or "").startswith("transformers.") for each in taken)
    arguments = technique.trainer_arguments(value, [each.what for each in taken])
    if trainer and edit is not None and arguments is not None:
        return f"the Trainer does it: add `{arguments}` to its TrainingArguments"
    if edit is not None:
        return edit.in_words()
    return (
        f"write\n{technique.source_form.strip()}\n" if technique.source_form else technique.summary
    )
