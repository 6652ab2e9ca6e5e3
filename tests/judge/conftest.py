"""Makes `judge_inputs` and the benchmark scripts importable: the tests replay what those report."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent.parent / "benchmarks"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
