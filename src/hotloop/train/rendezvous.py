"""How the processes of one training find each other, and what one says when another failed.

torchrun tells every process where they meet: a small store of keys and values that outlives each of
them. Who has to wait for the first one (it prepares data, which can take an hour) waits there, where no
time-out runs. A process that fails leaves its error there, so that the others can say why they stop,
and what all have to say is said once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import distributed as dist

from hotloop.core.config import LoopConfig
from hotloop.core.errors import EnvironmentFailed, ExitCode, HotloopError
from hotloop.core.ranks import ALONE, Ranks
from hotloop.optimizations.gradient_compression.trainer import wait_for_callbacks
from hotloop.train.group import CannotConnect, Group, Several

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")

MEET_S = 300
"""How long the processes of one run may take to find each other."""
_LONGEST_PAUSE_S = 0.5

_TIMED_OUT = re.compile(r"[Tt]imed out")
_BROKEN = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|pair closure|[Tt]imed out|remote process exited"
)
"""As gloo, the store and NCCL word a lost process."""


class AlreadyReported(Exception):
    """This process ends for a reason that another one has told the user already."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class RankFailed(HotloopError):
    """This process ends because of another one's error; with the exit code of that error."""

    def __init__(self, what: str, *, where: str | None, exit_code: ExitCode) -> None:
        super().__init__(what, where=where)
        self.exit_code = exit_code


class _OtherFailed(Exception):
    """Seen while waiting: some other process has left its error."""


class Rendezvous:
    """For one process alone: it is the first one, and the only one on its machine."""

    ranks: Ranks = ALONE

    def first(self, action: Callable[[], T]) -> T:
        """The first rank does it while the others wait, however long it takes; all get its result, which is JSON."""
        return action()

    def each_machine(self, action: Callable[[], T]) -> T:
        """One rank of each machine does it while the others wait, and those get its result.

        On the first machine before the others: they may share a disk.
        """
        return action()

    def refuse_failed(self) -> None:
        """Raises when another process has failed: to be asked while waiting for something else."""

    def group(self, device: torch.device, config: LoopConfig) -> Group:
        """Connect the ranks for training, once all of them have come this far."""
        return Group()


class _Several(Rendezvous):
    def __init__(self, ranks: Ranks, store: Store, prefix: str) -> None:
        self.ranks = ranks
        self._store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
        self._num_gates = 0
        self._timeout_s: float | None = None

    def first(self, action: Callable[[], T]) -> T:
        self._num_gates += 1
        return self._led_by(0, action)

    def each_machine(self, action: Callable[[], T]) -> T:
        self._num_gates += 1
        leader = self.ranks.rank - self.ranks.local_rank
        if leader == self.ranks.rank != 0:
            self._wait_for(0)
        return self._led_by(leader, action)

    def refuse_failed(self) -> None:
        if self._store.check(["failed"]):
            raise _OtherFailed

    def group(self, device: torch.device, config: LoopConfig) -> Group:
        self._timeout_s = config.train.rank_timeout_s
        self._num_gates += 1
        self._store.set(self._gate(self.ranks.rank), "here")
        for rank in range(self.ranks.num_ranks):
            self._wait_for(rank)
        return Several(self.ranks, self._store, device, config)

    def _led_by(self, leader: int, action: Callable[[], T]) -> T:
        if leader == self.ranks.rank:
            self._store.set(self._gate(leader), json.dumps(action()))
        result: T = json.loads(self._wait_for(leader))
        return result

    def _gate(self, leader: int) -> str:
        return f"gate {self._num_gates} of {leader}"

    def _wait_for(self, leader: int) -> str:
        pause = 0.01
        while not self._store.check([self._gate(leader)]):
            self.refuse_failed()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return self._store.get(self._gate(leader)).decode()

    def reported_failure(self, error: BaseException) -> BaseException:
        """What this process ends with: its own error, or that of the one that failed first."""
        lost = self._lost(error)
        own = lost or error
        code, what, where = ExitCode.COMMAND_FAILED, _in_a_line(own), None
        if isinstance(own, HotloopError):
            code, what, where = own.exit_code, own.what, own.where
        elif isinstance(own, KeyboardInterrupt):
            code, what = ExitCode.RESUMABLE, "interrupted"
        elif isinstance(own, MemoryError | torch.OutOfMemoryError | OSError):
            code = ExitCode.ENVIRONMENT
        mine = {"rank": self.ranks.rank, "what": what, "where": where, "exit_code": int(code)}
        try:
            first = json.loads(self._store.compare_set("failed", "", json.dumps(mine)))
        except (RuntimeError, ValueError):  # the store ended with the process that kept it
            return own
        if first["rank"] == self.ranks.rank:
            return own
        if first["what"] == what:
            return AlreadyReported(int(code))
        if lost is None and not isinstance(error, KeyboardInterrupt | CannotConnect):
            return own
        return RankFailed(
            f"rank {self.ranks.rank} stops because rank {first['rank']} did: {first['what']}",
            where=first["where"],
            exit_code=ExitCode(first["exit_code"]),
        )

    def _lost(self, error: BaseException) -> EnvironmentFailed | None:
        """The clear form of a lost connection; `None` for an error of this process's own."""
        text = str(error)
        if isinstance(error, HotloopError) or not isinstance(error, Exception):
            return None
        if self.ranks.num_ranks == 1:
            return None
        if not isinstance(error, _OtherFailed) and not _BROKEN.search(text):
            return None
        again = "run the same command again to continue from the last checkpoint"
        if _TIMED_OUT.search(text):
            limit = "" if self._timeout_s is None else f" for {self._timeout_s:g} s"
            return EnvironmentFailed(
                f"another rank did not answer{limit}",
                where="train.rank_timeout_s",
                do=f"see what it waits for, raise the limit if a save takes longer; {again}",
            )
        return EnvironmentFailed(
            "another rank ended without a word: it was killed, or its machine failed",
            do=f"torchrun's summary names it (signal 9: killed, often for memory); {again}",
        )


@contextmanager
def joined(ranks: Ranks) -> Iterator[Rendezvous]:
    """The rendezvous of a process that was launched, left in good order.

    Raises `AlreadyReported` where another process has said already why all end.
    """
    rendezvous = _Several(
        ranks, _store(), f"hotloop {os.environ.get('TORCHELASTIC_RESTART_COUNT')}"
    )
    try:
        yield rendezvous
    except BaseException as error:
        _let_it_finish()
        ended = rendezvous.reported_failure(error)
        if ended is error:
            raise
        raise ended from error
    finally:
        wait_for_callbacks()
    if dist.is_initialized():
        dist.destroy_process_group()


def _store() -> Store:
    """The store through which the processes find each other. Raises `EnvironmentFailed`."""
    from torch.distributed.rendezvous import rendezvous  # not in every build of torch

    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    try:
        store: Store = next(rendezvous("env://", timeout=timedelta(seconds=MEET_S)))[0]
        return store
    except (RuntimeError, ValueError, OSError) as error:
        if "EADDRINUSE" in str(error) or "already in use" in str(error):
            raise EnvironmentFailed(
                f"port {port} is in use on this machine",
                where="MASTER_PORT",
                do="name another one (torchrun --master-port N), or let torchrun find a free one: "
                "torchrun --standalone",
            ) from error
        raise EnvironmentFailed(
            f"the ranks cannot meet at {host}:{port}: {_in_a_line(error)}",
            where="MASTER_ADDR and MASTER_PORT",
            do="see that every machine reaches that address and that the first rank was started",
        ) from error


def _let_it_finish() -> None:
    """It ends anyway: the signal that torchrun sends to the others must not cut its last words short."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def _in_a_line(error: BaseException) -> str:
    text = str(error).split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
