"""A command in a memory group is ended by the kernel where it takes more than that."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hotloop.trial.memory_group import memory_group

TAKES = "held = bytearray({megabytes} << 20)\nfor i in range(0, len(held), 4096): held[i] = 1"


@pytest.mark.parametrize(("megabytes", "code"), [(20, 0), (400, -9)])
def test_what_takes_more_is_killed_and_what_takes_less_is_not(megabytes: int, code: int) -> None:
    with memory_group(200 << 20) as group:
        if group is None:
            pytest.skip("no memory control group can be made here")
        command = [sys.executable, "-c", TAKES.format(megabytes=megabytes)]
        ended = subprocess.run(group.command(command), check=False)
        assert group.path.is_dir()
    assert ended.returncode == code
    assert not group.path.exists()


def test_group_that_a_killed_process_of_this_number_left_is_in_nobodys_way() -> None:
    with memory_group(200 << 20) as group:
        if group is None:
            pytest.skip("no memory control group can be made here")
    group.path.mkdir()
    try:
        with memory_group(200 << 20) as again:
            assert again == group
    finally:
        if group.path.exists():
            group.path.rmdir()
