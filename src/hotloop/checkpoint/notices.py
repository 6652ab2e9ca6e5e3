"""Notices of a cloud that it takes this machine away, asked of its metadata server by a thread.

Nothing is asked where neither the firmware's names nor the environment say that this is such a machine. No proxy is
used, no redirect followed, and whatever the server answers or leaves out, training goes on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from hotloop.core.untrusted import parse_object

AHEAD_S = 120.0
"""A machine that goes later than this is not left yet."""
_TRIES = 3
_STRANGE = (ValueError, LookupError, TypeError, AttributeError)
"""What parsing an answer ends with that is of another kind."""
_HELD_S = 10
"""How long GCE holds a question back while its answer stays the same."""


@dataclass(frozen=True, slots=True)
class Notice:
    what: str
    left_s: float | None = None
    """Seconds until then, where the cloud says so and the clock can be trusted."""
    ends: bool = True
    """False for what is worth a word and no more."""


class Cloud:
    """A metadata server; `variable` of the environment may hold another address."""

    variable: str
    headers: Mapping[str, str] = {}
    every_s = 1.0
    """Between two polls, as its documentation asks for."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        given = environ.get(self.variable) or "169.254.169.254"
        self.address = given if "://" in given else f"http://{given}"

    def poll(self) -> list[Notice]:
        """What it says now. Raises `OSError`, `HTTPException` or `ValueError` where it cannot be understood."""
        raise NotImplementedError

    def ask(
        self, path: str, *, method: str = "GET", timeout_s: float = 5.0, **headers: str
    ) -> tuple[str | None, Mapping[str, str]]:
        """The text, `None` where nothing is there, and the headers. Raises `ValueError` for any other status."""
        sent = {**self.headers, **{key.replace("_", "-"): text for key, text in headers.items()}}
        parts = urlsplit(self.address)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError("not an http address")
        connection = HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout_s)
        with closing(connection):
            connection.request(method, path, headers=sent)
            answer = connection.getresponse()
            text = answer.read(1 << 20).decode("utf-8", "replace").strip()
            if answer.status not in (200, 404):
                raise ValueError(f"status {answer.status}")
            return text if answer.status == 200 else None, dict(answer.headers)


class Ec2(Cloud):
    variable, every_s = "AWS_EC2_METADATA_SERVICE_ENDPOINT", 5.0
    _token: str | None = None

    def poll(self) -> list[Notice]:
        if self._token is None:
            lasts_s = "21600"
            self._token, _ = self.ask(
                "/latest/api/token", method="PUT", X_aws_ec2_metadata_token_ttl_seconds=lasts_s
            )
        token, self._token = self._token or "", None  # kept while it is taken
        root = "/latest/meta-data"
        action, _ = self.ask(f"{root}/spot/instance-action", X_aws_ec2_metadata_token=token)
        advice, _ = self.ask(
            f"{root}/events/recommendations/rebalance", X_aws_ec2_metadata_token=token
        )
        self._token = token
        notices = [Notice("EC2 recommends to leave this machine", ends=False)] if advice else []
        if action is not None:
            said = parse_object(action)
            does = {"terminate": "terminates", "stop": "stops", "hibernate": "hibernates"}
            left_s = _left_s(datetime.fromisoformat(said["time"]))
            notices.append(Notice(f"EC2 {does[said['action']]} this machine", left_s))
        return notices


class Gce(Cloud):
    variable, headers = "GCE_METADATA_HOST", {"Metadata-Flavor": "Google"}
    _etag: str | None = None

    def poll(self) -> list[Notice]:
        root = "/computeMetadata/v1/instance"
        # Without the etag of an answer it would wait for the next change, past one that was.
        held = {"wait_for_change": "true", "timeout_sec": _HELD_S, "last_etag": self._etag}
        query = f"?{urlencode(held)}" if self._etag else ""
        preempted, headers = self.ask(f"{root}/preempted{query}", timeout_s=_HELD_S + 5.0)
        if preempted is None or headers.get("Metadata-Flavor") != "Google":
            raise ValueError("no answer of GCE")
        self._etag = headers.get("ETag")
        event, _ = self.ask(f"{root}/maintenance-event")
        notices = [Notice("GCE preempts this machine")] if preempted == "TRUE" else []
        if event not in (None, "NONE"):
            notices.append(Notice(f"GCE announces {event}", ends=False))
        return notices


class Azure(Cloud):
    variable, headers = "HOTLOOP_AZURE_METADATA_ENDPOINT", {"Metadata": "true"}
    _machine: str | None = None

    def poll(self) -> list[Notice]:
        if self._machine is None:
            name = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._machine, _ = self.ask(name)
        # The first question turns the service on, which may take two minutes.
        told, _ = self.ask("/metadata/scheduledevents?api-version=2020-07-01", timeout_s=AHEAD_S)
        notices = []
        for event in parse_object(told or "{}").get("Events", []):
            if self._machine in (None, *event["Resources"]):  # those of its set are listed, too
                kind, begins = event["EventType"], event.get("NotBefore")  # empty once it has begun
                left_s = _left_s(parsedate_to_datetime(begins)) if begins else None
                ends = kind in ("Preempt", "Terminate", "Redeploy", "Reboot")
                notices.append(Notice(f"Azure announces {kind} of this machine", left_s, ends))
        return notices


def _left_s(at: datetime) -> float | None:
    """`None` for a time in the past or far away: then the clock is wrong."""
    left_s = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return left_s if 0 < left_s < 86_400 else None


CLOUDS: dict[str, type[Cloud]] = {"ec2": Ec2, "gce": Gce, "azure": Azure}
_FIRMWARE = (
    ("azure", "class/dmi/id/chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    ("gce", "class/dmi/id/product_name", "Google Compute Engine"),
    ("gce", "class/dmi/id/product_serial", "GoogleCloud-"),
    ("ec2", "class/dmi/id/sys_vendor", "Amazon EC2"),
    ("ec2", "hypervisor/uuid", "ec2"),
)
"""How the files begin that cloud-init tells clouds apart by."""


def detected(environ: Mapping[str, str] = os.environ, sys: Path = Path("/sys")) -> str | None:
    """The cloud of this machine, by the environment or else by its firmware."""
    found = [name for name, cloud in CLOUDS.items() if environ.get(cloud.variable)]
    for name, file, begins in _FIRMWARE:
        with suppress(OSError):
            if (sys / file).read_text(encoding="ascii", errors="replace").startswith(begins):
                found.append(name)
    return found[0] if found else None


def watch(
    setting: str,
    closed: threading.Event,
    tell: Callable[[Notice], None],
    warn: Callable[[str], None],
) -> None:
    """Until `closed`, `tell` the first notice that this machine goes, and `warn` of the others; both from a thread."""
    name = detected() if setting == "auto" else setting
    if name not in CLOUDS:
        return
    cloud = CLOUDS[name](os.environ)

    def ask() -> None:
        failed, answered, said = 0, False, set[str]()
        while not closed.wait(cloud.every_s * min(2**failed, 12) if failed or answered else 0):
            try:
                notices, failed, answered = cloud.poll(), 0, True
            except (OSError, HTTPException, *_STRANGE) as error:
                notices, failed = [], failed + 1
                if failed == _TRIES and not answered:
                    why = f"{type(error).__name__}: {error}".partition("\n")[0]
                    warn(f"{cloud.address} gives no notices of its cloud, none are seen ({why})")
                    return
            for notice in notices:
                if notice.ends and (notice.left_s or 0) <= AHEAD_S:
                    return tell(notice)
                if notice.what not in said:
                    said.add(notice.what)
                    warn(notice.what[:200])

    threading.Thread(target=ask, name="hotloop-notices", daemon=True).start()
