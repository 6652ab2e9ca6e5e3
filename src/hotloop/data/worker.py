"""A worker process: `python -m hotloop.data.worker FD PARENT`. It never loads torch.

It is sent a task, the name of the engine, and jobs with their keys, and ends when the connection is closed
or its parent is gone. Jobs are made durable in a thread, while the next one is encoded.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from hotloop.core.errors import EnvironmentFailed, HotloopError
from hotloop.core.files import storage_error
from hotloop.data.encode import Worker
from hotloop.data.jobs import Task
from hotloop.data.tokenizer import Tokenizer

UNFINISHED = 2
"""Encoded jobs that may wait for the disk."""


def main(descriptor: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers Ctrl-C for all
    end_with_parent(parent)
    connection = Connection(descriptor)
    lock = threading.Lock()

    def send(*message: object) -> None:
        with lock:
            connection.send(message)

    try:
        _serve(connection, send)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - the parent reports it
        _send_failure(send, error)
        os._exit(1)


def _serve(connection: Connection, send: Any) -> None:
    waiting = threading.Semaphore(UNFINISHED)

    def progress(planned: int, text: int, tokens: int) -> None:
        send("progress", planned, text, tokens)

    def finish(number: int, finisher: Any) -> None:
        try:
            send("done", number, finisher())
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - the parent reports it
            _send_failure(send, error)
            os._exit(1)
        finally:
            waiting.release()

    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    task: Task = inbox.get()
    tokenizer = Tokenizer(
        task.tokenizer.decode(), where="the tokenizer"
    )  # while engines are compared
    worker = Worker(task, inbox.get(), tokenizer)
    with ThreadPoolExecutor(1) as disk:
        while True:
            job, key = inbox.get()
            finisher = worker.encode(job, key, progress)
            waiting.acquire()
            disk.submit(finish, job.number, finisher)


def _receive(connection: Connection, inbox: queue.SimpleQueue[Any]) -> None:
    """Take everything at once: a parent that waits to send does not take what is sent to it."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)  # the parent is gone: nobody waits for what is half done


def _send_failure(send: Any, error: BaseException) -> None:
    if isinstance(error, OSError):
        error = storage_error(
            error, error.filename or "the prepared text", "write the prepared text"
        )
    elif isinstance(error, MemoryError):
        error = EnvironmentFailed("out of memory", do="give fewer --workers")
    try:
        if isinstance(error, HotloopError):
            send("failed", type(error).__name__, error.what, error.where, error.do)
        else:
            send("crashed", "".join(traceback.format_exception(error)))
    except OSError:
        pass  # the parent is gone


def end_with_parent(parent: int) -> None:
    """Be killed when the parent dies (Linux); elsewhere the closed connection ends it."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
