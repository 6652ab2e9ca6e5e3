from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings
from hotloop.hardware.limits import Machine
from hotloop.optimizations.resolve import resolve

CPU = Machine("cpu", ("float32",), None, 2)


@pytest.mark.parametrize(
    ("text", "overrides", "where"),
    [
        ("", ["train.precision=tf32"], "train.precision=tf32"),
        ("train:\n  precision: tf32\n", [], "{path}:4"),
    ],
)
def test_value_that_cannot_be_had_is_answered_with_its_place(
    text: str, overrides: list[str], where: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"data:\n  source: python-stdlib\n{text}")
    with pytest.raises(UsageError, match=r"`train\.precision: tf32` cannot be used") as caught:
        resolve(load_settings(path, overrides), CPU)
    assert caught.value.where == where.format(path=path)
