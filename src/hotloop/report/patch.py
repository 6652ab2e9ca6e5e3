"""What the patch holds, and the words for what it does not, for a terminal."""

from __future__ import annotations

import shlex
import textwrap

from hotloop.core.ledger import Ledger


def render_patch(ledger: Ledger) -> str:
    """Empty of fixes, it says that there is nothing to write."""
    kept = [fix for fix in ledger.fixes if fix.patch is not None]
    if not kept:
        return "No fix was kept, so there is no patch to write."
    edited = [fix for fix in kept if fix.patch == "edited"]
    if ledger.diff is None:
        lines = ["No patch was written: none of what was kept is safe to edit. By hand:"]
    else:
        file = shlex.quote(ledger.diff)
        how = f"apply it here with `git apply {file}` or `patch -p1 < {file}`"
        lines = [f"Patch: {ledger.diff} ({how})"]
    lines += [f"  {fix.name}: edits {fix.patch_text}" for fix in edited]
    words = [fix for fix in kept if fix.patch == "words"]
    if words and edited:
        lines.append("Not in it, to be written by hand:")
    for fix in words:
        lines.append(textwrap.indent(f"{fix.name}: {fix.patch_text}", "  "))
    return "\n".join(lines)
