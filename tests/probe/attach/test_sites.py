"""Looking at the variables of a script's functions changes nothing for the script."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from hotloop.probe.attach.sites import variables_of


class Batch:
    """Large in a real script."""


def look() -> dict[str, Any]:
    return variables_of(sys._getframe(1))


def test_what_a_script_lets_go_is_freed_although_its_variables_were_looked_at() -> None:
    batch = Batch()
    held = weakref.ref(batch)
    assert look()["batch"] is batch
    del batch
    assert held() is None


def test_a_snapshot_that_the_script_took_keeps_its_content() -> None:
    settings = 3
    taken = locals()
    assert look()["settings"] == settings
    assert taken["settings"] == 3


def test_variables_of_a_module_stay() -> None:
    namespace: dict[str, Any] = {"look": look, "__name__": "script"}
    exec("kept = 1\nseen = look()", namespace)
    assert namespace["kept"] == 1
    assert namespace["seen"]["kept"] == 1
