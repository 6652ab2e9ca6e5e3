"""`--on` and its options are what datatrove's executors take, or one clear error."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.data.cluster import parse_request


def test_options_have_the_types_of_the_signature() -> None:
    pytest.importorskip("ray")
    request = parse_request(
        "ray:8",
        [
            "cpus_per_task=2",
            "mem_per_cpu_gb=1.5",
            "log_first=true",
            "time=",
            'ray_remote_kwargs={"a": 1}',
        ],
    )
    assert (request.kind, request.ranks, request.cpus) == ("ray", 8, 2)
    assert request.options == {
        "cpus_per_task": 2,
        "mem_per_cpu_gb": 1.5,
        "log_first": True,
        "time": None,
        "ray_remote_kwargs": {"a": 1},
    }
    assert str(request) == "ray:8"


@pytest.mark.parametrize(
    ("on", "options", "what", "do"),
    [
        ("cloud:2", [], "no such executor", "local:RANKS"),
        ("ray", [], "no number of ranks", "ray:8"),
        ("local:0", [], "no number of ranks", "local:8"),
        ("local:x", [], "no number of ranks", "local:8"),
        ("local:2", ["worker=3"], "no option `worker`", "did you mean `workers`"),
        ("local:2", ["partition=cpu"], "no option `partition`", "start_method"),
        ("local:2", ["workers"], "no value", "KEY=VALUE"),
        ("local:2", ["workers=three"], "workers=three: Input should be a valid integer", "-1"),
        ("local:2", ["workers=1", "workers=2"], "given twice", "once"),
        ("local:2", ["skip_completed=true"], "skip_completed cannot be set", "leave it out"),
        ("slurm:2", ["time=1:00:00"], "needs partition", "--on-option partition=VALUE"),
        ("slurm:2", ["requeue=maybe"], "requeue=maybe: Input should be a valid boolean", "True"),
    ],
)
def test_bad_request_is_one_clear_error(on: str, options: list[str], what: str, do: str) -> None:
    pytest.importorskip("datatrove")
    with pytest.raises(UsageError, match=what) as caught:
        parse_request(on, options)
    assert do in str(caught.value.do)


@pytest.mark.parametrize(("on", "missing"), [("local:2", "datatrove"), ("ray:2", "ray")])
def test_missing_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, on: str, missing: str
) -> None:
    if missing != "datatrove":
        pytest.importorskip("datatrove")
    found = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == missing else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    extra = "ray" if missing == "ray" else "cluster"
    with pytest.raises(UsageError, match=f"needs the package {missing}") as caught:
        parse_request(on)
    assert caught.value.do == f"pip install 'hotloop[{extra}]'"


def test_slurm_without_sbatch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datatrove")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentFailed, match="sbatch is not on this machine"):
        parse_request("slurm:2", ["time=1:00:00", "partition=cpu"])
