"""What options of the commands take: times, and machines of a network."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from hotloop.core.connections import Network, connection_name, host_and_port

ALL = "all"
"""What `--network` without a value stands for."""


class Seconds(click.ParamType[float]):
    """`90s`, `10m` or `2h`; a bare number could be any of them."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)\s*([smh]?)", str(value).strip())
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no time; write 90s, 10m or 2h", param, ctx)
        if not match[2]:
            self.fail(f"{value!r} has no unit; say {match[1]}m or {match[1]}s", param, ctx)
        return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


class Budget(Seconds):
    """A time, or `none`: infinite."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        return math.inf if value == "none" else super().convert(value, param, ctx)


class Hosts(click.ParamType[Network]):
    """Hosts with their ports; without a value all machines."""

    name = "hosts"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Network:
        if value == ALL:
            return Network(unlimited=True)
        try:
            named = [connection_name(*host_and_port(each)) for each in str(value).split(",")]
        except ValueError as error:
            self.fail(
                f"{error}; write --network=HOST:PORT,... or, for all machines, --network -- COMMAND",
                param,
                ctx,
            )
        return Network(tuple(dict.fromkeys(named)))
