"""What to write and where, where no diff can be made."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.doctor.patch.taken import Taken
from hotloop.optimizations.optimization import Optimization
from hotloop.optimizations.source_edit import AroundCall, BeforeLoop, Keywords, SetUp, SourceEdit

_LOADER = {"num_workers", "prefetch_factor", "pin_memory"}
"""Keywords of a DataLoader that `TrainingArguments` has as `dataloader_...`."""


def words_for(
    technique: Optimization, edit: SourceEdit | None, taken: Sequence[Taken], why: str
) -> str:
    """A sentence or two for a reader who edits by hand."""
    sites = list(dict.fromkeys(each.frames[0].site for each in taken if each.frames))
    at = f"at {' and '.join(sites[:3])}: " if sites else ""
    what = _what(technique, edit, taken)
    return f"{at}{what}{'' if what.endswith(chr(10)) else '. '}Not edited: {why}."


def _what(technique: Optimization, edit: SourceEdit | None, taken: Sequence[Taken]) -> str:
    trainer = any((each.inside or "").startswith("transformers.") for each in taken)
    arguments = _training_arguments(edit, taken) if trainer and edit is not None else None
    if arguments is not None:
        return f"the Trainer does it: add `{arguments}` to its TrainingArguments"
    if edit is not None:
        return edit.in_words()
    return (
        f"write\n{technique.source_form.strip()}\n" if technique.source_form else technique.summary
    )


def _training_arguments(edit: SourceEdit, taken: Sequence[Taken]) -> str | None:
    """How transformers names it."""
    match edit:
        case Keywords(values=values) if set(values) <= _LOADER:
            return ", ".join(f"dataloader_{name}={value}" for name, value in values.items())
        case Keywords(values=values) if "fused" in values:
            adamw = all(each.what == "AdamW" for each in taken)
            return 'optim="adamw_torch_fused"' if adamw else None
        case AroundCall(name="in_bf16"):
            return "bf16=True"
        case BeforeLoop(line="{model}.compile()"):
            return "torch_compile=True"
        case SetUp(lines=lines) if any("allow_tf32" in line for line in lines):
            return "tf32=True"
    return None
