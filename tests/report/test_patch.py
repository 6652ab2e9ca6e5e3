"""What the terminal says of a patch."""

from __future__ import annotations

from dataclasses import replace

from hotloop.core.ledger import Ledger, TriedFix
from hotloop.report.ledger import ledger_section, render_patch

EDITED = TriedFix(
    "fused_optimizer", True, "kept", "faster", patch="edited", patch_text="train.py:7"
)
WORDS = replace(
    EDITED, name="compile", patch="words", patch_text="at train.py:9: write X. Not edited: Y."
)


def ledger(*fixes: TriedFix, diff: str | None = None) -> Ledger:
    return Ledger((), fixes, tuple(fix.name for fix in fixes), None, 3, 10, 1.0, None, diff=diff)


def test_patch_names_what_it_edits_and_says_the_rest() -> None:
    assert render_patch(ledger(EDITED, WORDS, diff="fixes.diff")) == (
        "Patch: fixes.diff (apply it here with `git apply fixes.diff` or `patch -p1 < fixes.diff`)\n"
        "  fused_optimizer: edits train.py:7\n"
        "Not in it, to be written by hand:\n"
        "  compile: at train.py:9: write X. Not edited: Y."
    )


def test_without_an_edit_there_is_no_patch() -> None:
    assert "Not edited: Y.</pre>" in ledger_section(ledger(WORDS))
    assert render_patch(ledger(WORDS)) == (
        "No patch was written: none of what was kept is safe to edit. By hand:\n"
        "  compile: at train.py:9: write X. Not edited: Y."
    )
    nothing = replace(EDITED, status="rejected", patch=None, patch_text=None)
    assert render_patch(ledger(nothing)) == "No fix was kept, so there is no patch to write."
