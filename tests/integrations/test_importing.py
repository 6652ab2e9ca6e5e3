"""What `import hotloop.integrations` loads, and what a framework that is not there is answered with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


def ran(body: str) -> str:
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(SOURCE)})  # fmt: skip
    return done.stdout + done.stderr


def test_importing_it_loads_no_framework() -> None:
    heavy = "{'torch', 'transformers', 'lightning', 'accelerate', 'numpy', 'pydantic'}"
    assert ran(f"import sys, hotloop.integrations; print({heavy} & {{*sys.modules}})") == "set()\n"


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("TransformersWatch", "transformers"),
        ("LightningWatch", "lightning"),
        ("AccelerateWatch", "accelerate"),
        ("TransformersCallback", "transformers"),
        ("LightningCheckpointIO", "lightning"),
    ],
)
def test_a_framework_that_is_not_there_is_named(name: str, package: str) -> None:
    # `None` there is what Python takes for a module that can not be found.
    gone = f"sys.modules['{package}'] = sys.modules['pytorch_{package}'] = None"
    said = ran(f"import sys; {gone}\nfrom hotloop.integrations import {name}")
    assert f"UsageError: {name} needs {package}" in said
    assert f"pip install {package}" in said
