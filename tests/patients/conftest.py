"""The modules of this directory are programs, too: found by name, as when they are run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
