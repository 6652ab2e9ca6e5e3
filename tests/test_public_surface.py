"""Help texts, config keys, finding codes, JSON fields: a change to any of them is a visible diff."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_public_surface_is_what_the_golden_files_say() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "surface.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
