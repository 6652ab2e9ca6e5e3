"""What the terminal says of a patch, and the description of a pull request with it."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from hotloop.core.census import Census
from hotloop.core.command_run import CommandRun
from hotloop.core.judgement import Diagnosis, Finding, Parity, Steps, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.report.html import Page, render_html
from hotloop.report.kept_patch import render_pull_request
from hotloop.report.ledger import fix_rows, render_patch
from hotloop.runs.run_page import _patch_of, _when, text_of
from hotloop.runs.stored_run import StoredRun

EDITED = TriedFix(
    "fused_optimizer", True, "kept", "faster", patch="edited", patch_text="train.py:7"
)
WORDS = replace(
    EDITED, name="compile", patch="words", patch_text="at train.py:9: write X. Not edited: Y."
)

TOGETHER = Verdict(
    *("improved", 1.31, 1.2, 1.43, 0.99, Parity("same", "bitwise", reason="equal losses")),
    *("baseline", "fused_optimizer"),
    num_pairs=4,
    baseline_s_per_work=0.0655,
    candidate_s_per_work=0.05,
    unit="step",
)


def ledger(*fixes: TriedFix, diff: str | None = None) -> Ledger:
    return Ledger((), fixes, tuple(fix.name for fix in fixes), None, 3, 10, 1.0, None, diff=diff)


def test_patch_names_what_it_edits_and_says_the_rest() -> None:
    assert render_patch(ledger(EDITED, WORDS, diff="fixes.diff")) == (
        "Patch: fixes.diff\n"
        "  fused_optimizer: edits train.py:7\n"
        "  apply it here: git apply fixes.diff\n"
        "  undo it: git apply -R fixes.diff\n"
        "Not in it, to be written by hand:\n"
        "  compile: at train.py:9: write X. Not edited: Y."
    )


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [("fix.patch", b"--- a/t.py\n", "--- a/t.py\n"), ("id_rsa", b"secret\n", ""), ("a\0b", None, "")],
)  # fmt: skip
def test_a_page_shows_of_the_files_that_a_ledger_names_a_patch_alone(
    tmp_path: Path, name: str, content: bytes | None, shown: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    examined = CommandRun(("python", "t.py"), str(tmp_path), 1e20, "0")
    run = StoredRun(tmp_path, command_run=examined, ledger=ledger(EDITED, diff=name))
    assert _patch_of(run) == shown
    assert _when(examined) == ", python t.py"  # its time is none


def test_without_an_edit_there_is_no_patch() -> None:
    found = replace(ledger(WORDS), together=TOGETHER)
    assert "Not edited: Y.</pre>" in render_html(Page("run", examined=Census(), ledger=found))
    assert render_patch(ledger(WORDS)) == (
        "No patch was written: none of what was kept is safe to edit. By hand:\n"
        "  compile: at train.py:9: write X. Not edited: Y."
    )
    run = StoredRun(Path("run"), ledger=found)
    assert text_of(run).endswith("write X. Not edited: Y.")
    assert "No patch" not in text_of(replace(run, ledger=ledger(WORDS)))  # unproven
    nothing = replace(EDITED, status="rejected", patch=None, patch_text=None)
    assert render_patch(ledger(nothing)) == "No fix was kept, so there is no patch to write."


def test_pull_request_says_what_was_slow_what_changes_and_what_was_measured() -> None:
    fix = replace(EDITED, answers=("HL401",), start_s=0.0, pays_after_steps=0)
    found = replace(ledger(fix, WORDS), command=("python", "my train.py"), together=TOGETHER)
    slow = Finding("HL401", "the optimizer is slow", 1.4, site="train.py:7")
    other = Finding("HL101", "the loader is slow", 1.1)
    diagnosis = Diagnosis("optimizer", Steps(60, 10, 0.0655), findings=(other, slow))
    text = render_pull_request(found, diagnosis, None, b"--- a/train.py\n+++ b/train.py\n")
    assert (
        text
        == """\
<!-- hotloop doctor -->

Faster training: `fused_optimizer`, 1.31x (1.20 to 1.43, 4 pairs)

What was slow:
- HL401: the optimizer is slow at `train.py:7`

What this changes:
- `fused_optimizer`: edits train.py:7

|  | seconds per step |
| --- | ---: |
| before | 65.5 ms |
| with this patch | 50 ms |

- Speed: 1.31x (1.20 to 1.43, 4 pairs), improved; interleaved fresh processes of the patched script and of the unchanged one, 10 steps of each counted.
- What it learns: equal losses.
- Measured with `compile` as well, which is not part of this change.
- `fused_optimizer`: pays from the first step on.
- Measured by: `hotloop doctor -- python 'my train.py'`

```diff
--- a/train.py
+++ b/train.py
```
"""
    )
    switched = replace(found, together=replace(TOGETHER, switched=True))
    said = render_pull_request(switched, diagnosis, None, b"")
    assert "improved; turned on and off within fresh processes, and then seen in pairs" in said
    epochs = replace(found, together_over_epochs=1.2)
    said = render_pull_request(epochs, diagnosis, None, b"")
    assert "each counted; 1.20x over whole epochs, as each starts its workers again." in said


def test_source_that_holds_a_fence_does_not_end_the_diff_of_a_pull_request() -> None:
    found = replace(ledger(EDITED), together=TOGETHER)
    diagnosis = Diagnosis("optimizer", Steps(60, 10, 0.0655))
    text = render_pull_request(found, diagnosis, None, b" ```python\n+x\n")
    assert text.endswith("````diff\n ```python\n+x\n````\n")


SLOW = Finding("HL401", "the optimizer is slow", 1.4, site="train.py:7", advice="Fuse it.")
WAITS = Finding("HL106", "making a batch waits", 1.2, site="train.py:3", advice="Move the data.")
PAGE = Page(
    "run",
    answer="Updating takes 30 % of the time.",
    examined=Census(),
    diagnosis=Diagnosis("optimizer", Steps(60, 10, 0.0655), findings=(SLOW, WAITS)),
    sources={"train.py:3": "x = read(<path>)"},
)


def card_of(page: Page) -> str:
    """What a reader sees first."""
    card = render_html(page).partition('<section id="do"')[2].partition("</section>")[0]
    return unescape(re.sub("<(?!path>)[^>]*>", "", card))


def test_page_of_a_command_opens_with_what_to_do() -> None:
    found = replace(ledger(EDITED, diff="a fix.patch"), together=TOGETHER)
    page = replace(PAGE, ledger=found, patch="-a < b\r\n+a > b\r\n")
    text = render_html(page)
    assert text.index('<section id="do"') < text.index("<nav>") < text.index('id="fixes"')
    card = card_of(page)
    for said in (
        "With fused_optimizer: 1.31x (1.20 to 1.43, 4 pairs), improved",
        "The losses agree. Before: Updating takes 30 % of the time.",
        "fused_optimizer edits train.py:7.",
        "git apply 'a fix.patch'",
        "git apply -R 'a fix.patch'",
    ):
        assert said in card
    # A carriage return as such would be a new line to a browser.
    assert '<span class="removed">-a &lt; b&#13;</span>\n' in text
    unproven = card_of(replace(page, ledger=replace(found, together=None)))
    assert "git apply" not in unproven


def test_without_a_kept_fix_the_card_says_what_is_left_to_do() -> None:
    missed = replace(EDITED, status="rejected", why="not faster", answers=("HL401",), patch=None)
    tried = replace(ledger(missed), kept=())
    card = card_of(replace(PAGE, ledger=tried, next_command="hotloop doctor --out run -- x"))
    assert (
        card.index("Updating takes 30 %") < card.index("Move the data.") < card.index("--out run")
    )
    assert "train.py:3 x = read(<path>)" in card
    assert "Fuse it." not in card  # that was tried, and is none here
    undecided = replace(missed, status="undecided")
    assert "Fuse it." in card_of(replace(PAGE, ledger=replace(tried, fixes=(undecided,))))
    untried = card_of(PAGE)
    assert "No fix has been tried." in untried
    assert "Fuse it." in untried
    assert "Do this" not in card_of(replace(PAGE, diagnosis=None))


def test_fixes_are_ranked_by_what_was_measured() -> None:
    fixes = (
        replace(EDITED, name="slower", status="rejected", verdict=replace(TOGETHER, ratio=0.9)),
        replace(EDITED, name="untimed", status="not_applied"),
        replace(EDITED, name="kept", verdict=replace(TOGETHER, ratio=1.2)),
        replace(EDITED, name="fastest", verdict=replace(TOGETHER, ratio=1.3)),
    )
    names = [row[1] for row in fix_rows(ledger(*fixes))]
    assert names == ["`fastest`", "`kept`", "`slower`", "`untimed`"]
