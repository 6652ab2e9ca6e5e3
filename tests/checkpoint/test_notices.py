"""Notices of clouds, read from a real server that speaks their protocols."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from metadata_server import (
    AZURE_EVENTS,
    EC2_ACTION,
    EC2_ADVICE,
    GCE_EVENT,
    GCE_PREEMPTED,
    Metadata,
    served,
)

from hotloop.checkpoint import notices
from hotloop.checkpoint.notices import CLOUDS, Notice, detected, watch
from processes import wait_for

LIMIT_S = 120


@pytest.fixture
def server() -> Iterator[Metadata]:
    with served() as metadata:
        yield metadata


class Told:
    """What a watching thread says."""

    def __init__(self) -> None:
        self.closed, self.told = threading.Event(), threading.Event()
        self.notice: Notice | None = None
        self.warned: list[str] = []
        self.heard = threading.Event()

    def tell(self, notice: Notice) -> None:
        self.notice = notice
        self.told.set()

    def warn(self, message: str) -> None:
        self.warned.append(message)
        self.heard.set()


@pytest.fixture
def watched(server: Metadata, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`watched("ec2")` watches the server, ten times as often."""
    told = Told()

    def begin(setting: str, address: str = f"127.0.0.1:{server.port}") -> Told:
        for cloud in CLOUDS.values():
            monkeypatch.setattr(cloud, "every_s", 0.02)
        monkeypatch.setattr(notices, "_HELD_S", 1)
        for variable in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(variable, "http://127.0.0.1:9")  # nobody is there
        monkeypatch.setenv(CLOUDS[setting].variable, address)
        watch(setting, told.closed, told.tell, told.warn)
        return told

    yield begin
    told.closed.set()
    for thread in threading.enumerate():
        if thread.name == "hotloop-notices":
            thread.join(LIMIT_S)


def in_seconds(seconds: float) -> datetime:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).replace(microsecond=0)


def test_spot_machine_of_ec2_is_told_its_end_and_a_recommendation_only_noted(
    server: Metadata, watched: Any
) -> None:
    told = watched("ec2")
    server.say(EC2_ADVICE, {"noticeTime": in_seconds(0).isoformat()})
    assert told.heard.wait(LIMIT_S)
    assert told.warned == ["EC2 recommends to leave this machine"]
    server.tokens += 1  # the token runs out
    at = in_seconds(110).strftime("%Y-%m-%dT%H:%M:%SZ")
    server.say(EC2_ACTION, {"action": "terminate", "time": at})
    assert told.told.wait(LIMIT_S)
    assert told.notice.what == "EC2 terminates this machine"
    assert 90 < told.notice.left_s <= 110
    assert len(told.warned) == 1


def test_preemption_by_gce_ends_a_question_that_waits_for_it(
    server: Metadata, watched: Any
) -> None:
    told = watched("gce")
    server.say(GCE_EVENT, "MIGRATE_ON_HOST_MAINTENANCE")
    assert told.heard.wait(LIMIT_S)
    assert "MIGRATE_ON_HOST_MAINTENANCE" in told.warned[0]
    server.say(GCE_PREEMPTED, "TRUE")
    assert told.told.wait(LIMIT_S)
    assert told.notice == Notice("GCE preempts this machine")
    assert any("wait_for_change=true" in path and "last_etag=" in path for path in server.asked)


def test_machine_that_gce_preempted_before_it_was_asked_is_told(
    server: Metadata, watched: Any
) -> None:
    server.say(GCE_PREEMPTED, "TRUE")
    assert watched("gce").told.wait(LIMIT_S)


def test_azure_tells_of_this_machine_alone_and_not_long_before(
    server: Metadata, watched: Any
) -> None:
    def event(kind: str, machine: str, seconds: float) -> dict[str, Any]:
        begins = format_datetime(in_seconds(seconds), usegmt=True)
        return {"EventType": kind, "Resources": [machine], "NotBefore": begins}

    other, freeze = event("Preempt", "worker_1", 30), event("Freeze", "worker_0", 900)
    server.say(AZURE_EVENTS, {"Events": [other, freeze, event("Redeploy", "worker_0", 600)]})
    told = watched("azure")
    assert told.heard.wait(LIMIT_S)
    assert wait_for(lambda: len(told.warned) == 2, LIMIT_S)
    assert told.warned == [
        "Azure announces Freeze of this machine",
        "Azure announces Redeploy of this machine",
    ]
    assert not told.told.is_set()
    server.say(AZURE_EVENTS, {"Events": [other, event("Preempt", "worker_0", 30)]})
    assert told.told.wait(LIMIT_S)
    assert told.notice.what == "Azure announces Preempt of this machine"
    assert told.notice.left_s <= 30


@pytest.mark.parametrize(
    ("cloud", "path", "text"),
    [
        ("ec2", EC2_ACTION, "<html>log in to the network</html>"),
        ("ec2", EC2_ACTION, '{"action": "dance", "time": "2026-01-01T00:00:00Z"}'),
        ("ec2", EC2_ACTION, '{"action": "stop", "time": 5}'),
        ("gce", GCE_PREEMPTED, "<html></html>"),
        ("azure", AZURE_EVENTS, '{"Events": 5}'),
        ("azure", AZURE_EVENTS, '{"Events": ["Preempt"]}'),
        ("azure", AZURE_EVENTS, "[" * 100_000),
    ],
)
def test_answer_that_is_no_notice_is_none_and_the_next_one_is_read(
    server: Metadata, watched: Any, cloud: str, path: str, text: str
) -> None:
    told = watched(cloud)
    for count, said in ((3, None), (7, text)):  # first one that can be read: this is the cloud
        if said is not None:
            server.say(path, said)
        assert wait_for(lambda count=count: len(server.asked) >= count, LIMIT_S)
    assert not told.told.is_set()
    preempt = {"EventType": "Preempt", "Resources": ["worker_0"], "NotBefore": ""}
    stops = {"action": "stop", "time": in_seconds(60).isoformat()}
    server.say(path, {"ec2": stops, "gce": "TRUE", "azure": {"Events": [preempt]}}[cloud])
    assert told.told.wait(LIMIT_S)
    assert told.notice.ends


def test_server_that_never_answers_is_asked_three_times(server: Metadata, watched: Any) -> None:
    server.status = 500
    told = watched("gce")
    assert told.heard.wait(LIMIT_S)
    assert told.warned == [
        f"http://127.0.0.1:{server.port} gives no notices of its cloud, none are seen (ValueError: status 500)"
    ]
    assert len(server.asked) == 3


def test_server_that_fails_for_a_while_is_asked_again(server: Metadata, watched: Any) -> None:
    told = watched("ec2")
    assert wait_for(lambda: len(server.asked) > 3, LIMIT_S)  # the first three are answered
    server.status = 503
    assert wait_for(lambda: len(server.asked) >= 8, LIMIT_S)
    server.status = None
    server.say(EC2_ACTION, {"action": "stop", "time": in_seconds(-3600).isoformat()})
    assert told.told.wait(LIMIT_S)
    assert told.notice == Notice("EC2 stops this machine")  # an hour ago: the clock is wrong


@pytest.mark.parametrize("address", ["https://there", "file:///etc/passwd", "http://", "http://[", "http://a:b"])  # fmt: skip
def test_address_that_is_none_is_one_clear_word(
    watched: Any, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(CLOUDS["gce"], "variable", "ITS_ADDRESS")
    told = watched("gce", address)
    assert told.heard.wait(LIMIT_S)
    assert told.warned[0].startswith(f"{address} gives no notices")


FIRMWARE = {
    "ec2": ("class/dmi/id/sys_vendor", "Amazon EC2\n"),
    "ec2 on xen": ("hypervisor/uuid", "ec2e1916-9099-7caf-fd21-012345abcdef\n"),
    "gce": ("class/dmi/id/product_name", "Google Compute Engine\n"),
    "azure": ("class/dmi/id/chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n"),
    "hyper-v at home": ("class/dmi/id/sys_vendor", "Microsoft Corporation\n"),
    "laptop": ("class/dmi/id/product_name", "ThinkPad X1\n"),
}


@pytest.mark.parametrize("machine", FIRMWARE)
def test_cloud_is_known_by_its_firmware_and_a_laptop_is_none(tmp_path: Path, machine: str) -> None:
    file, text = FIRMWARE[machine]
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    name = machine.split()[0]
    assert detected({}, tmp_path) == (name if name in CLOUDS else None)
    assert detected({"GCE_METADATA_HOST": "there"}, tmp_path) == "gce"


def test_nobody_is_asked_where_nothing_says_cloud(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(notices, "detected", lambda: detected({}, tmp_path))
    told, before = Told(), {*threading.enumerate()}
    watch("auto", told.closed, told.tell, told.warn)
    watch("none", told.closed, told.tell, told.warn)
    assert {*threading.enumerate()} <= before  # of other tests some may end meanwhile
