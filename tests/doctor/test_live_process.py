"""Samples of a process's stacks as py-spy stores them."""

from hotloop.doctor.live_process import Frame, stacks_of


def test_a_stack_whose_names_were_read_while_they_changed_is_left_out() -> None:
    frames = [
        {"name": "main", "file": "/train.py", "line": 3},
        {"name": "step", "file": "/tr\x00\x00\ufffd", "line": 9},
        {"name": "native", "file": None, "line": None},
    ]
    stored = {
        "shared": {"frames": frames},
        "profiles": [
            {"name": 'Process 7 Thread 8 "python"', "samples": [[0, 2], [0, 1]]},
            {"name": "something else", "samples": [[0]]},
        ],
    }
    assert stacks_of(stored) == {(7, "8"): ((Frame("main", "/train.py", 3),),)}
