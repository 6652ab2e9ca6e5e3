"""Ways out of a trial, each tried for real: `python escapes.py ROOT REPORT PORTS`.

An attempt may fail or seem to work; what counts is what is found outside afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes  # noqa: F401
import json
import mmap  # noqa: F401
import os
import shutil  # noqa: F401 -- what the attempts below use
import signal
import socket
import sqlite3  # noqa: F401
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path

ATTEMPTS: dict[str, Callable[[Path, dict[str, int]], object]] = {}


def attempt(name: str) -> Callable[[Callable[[Path, dict[str, int]], object]], None]:
    def add(function: Callable[[Path, dict[str, int]], object]) -> None:
        ATTEMPTS[name] = function

    return add


def files() -> None:
    """Each on a directory of its own with `kept.txt`, `tensor.bin`, `base.db` and `sub/deep.txt`."""
    simple: dict[str, str] = {
        "open": "open(d/'kept.txt', 'w').write('x')",
        "append": "open(d/'kept.txt', 'a').write('x')",
        "new file": "open(d/'new.txt', 'x').close()",
        "os.open": "os.write(os.open(d/'kept.txt', os.O_WRONLY), b'x')",
        "truncate": "os.truncate(d/'kept.txt', 0)",
        "rename": "os.rename(d/'kept.txt', d/'other.txt')",
        "replace from inside": "open('mine.txt', 'w').close(); os.replace('mine.txt', d/'kept.txt')",
        "move inside": "shutil.move(d/'kept.txt', 'taken.txt')",
        "unlink": "os.unlink(d/'kept.txt')",
        "rmtree": "shutil.rmtree(d)",
        "mkdir": "os.makedirs(d/'a'/'b')",
        "chmod file": "os.chmod(d/'kept.txt', 0)",
        "chmod directory": "os.chmod(d, 0o500)",
        "utime": "os.utime(d/'kept.txt', (1, 1))",
        "xattr": "os.setxattr(d/'kept.txt', 'user.mine', b'x')",
        "symlink there": "os.symlink('kept.txt', d/'link')",
        "write through a symlink": "os.symlink(d, 'away'); open('away/kept.txt', 'w').write('x')",
        "write through a hard link": "os.link(d/'kept.txt', 'hard.txt'); open('hard.txt', 'w').write('x')",
        "hard link there": "os.link(d/'kept.txt', d/'second.txt')",
        "relative path": "open(os.path.relpath(d/'kept.txt'), 'w').write('x')",
        "mkfifo": "os.mkfifo(d/'pipe')",
        "mmap": "f = open(d/'kept.txt', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0:1] = b'X'; m.flush()",
        "copytree": "shutil.copytree(d/'sub', d/'copied')",
        "sendfile": "os.sendfile(os.open(d/'new', os.O_CREAT | os.O_WRONLY), os.open(d/'kept.txt', 0), 0, 4)",
        "sqlite3": "c = sqlite3.connect(d/'base.db'); c.execute('insert into t values (2)'); c.commit()",
        "C library": "ctypes.CDLL(None).creat(os.fsencode(d/'kept.txt'), 0o644)",
        "subprocess cp": "subprocess.run(['cp', sys.executable, d/'kept.txt'])",
        "subprocess rm -r": "subprocess.run(['rm', '-r', d])",
        "subprocess touch": "subprocess.run(['touch', d/'kept.txt'])",
        "os.system": "os.system(f'echo x > {d}/kept.txt')",
        "child without environment": "subprocess.run(['sh', '-c', f'echo x > {d}/kept.txt'], env={})",
        "isolated Python": "subprocess.run([sys.executable, '-I', '-c', f'open({str(d/\"kept.txt\")!r}, \"w\")'])",
        "path of the own root": "open(f'/proc/self/root{d}/kept.txt', 'w').write('x')",
        "path of the first process": "open(f'/proc/1/root{d}/kept.txt', 'w').write('x')",
        "path of the launching process": "open(f'/proc/{os.getppid()}/root{d}/kept.txt', 'w').write('x')",
        "directory of the launching process": "open(f'/proc/{os.getppid()}/cwd/kept.txt', 'w').write('x')",
        "namespaces of its own": "subprocess.run(['unshare', '-Urm', 'sh', '-c', f'umount -l /tmp /; echo x > {d}/kept.txt'])",
        "safetensors": "from safetensors.torch import save_file; import torch; save_file({'a': torch.ones(2)}, d/'kept.txt')",
        "torch.save": "import torch; torch.save(1, d/'kept.txt')",
        "torch.jit.save": "import torch; torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), d/'kept.txt')",
        "torch.from_file": "import torch; torch.from_file(str(d/'tensor.bin'), shared=True, size=4).fill_(7)",
        "numpy.memmap": "import numpy; a = numpy.memmap(d/'tensor.bin', 'float32', 'r+'); a[:] = 7; a.flush()",
        "numpy.save": "import numpy; numpy.save(d/'new.npy', [1])",
    }  # fmt: skip
    for name, source in simple.items():
        code = compile(source, name, "exec")

        def run(d: Path, ports: dict[str, int], code: object = code) -> None:
            exec(code, {**globals(), "d": d})  # type: ignore[arg-type]

        ATTEMPTS[name] = run


files()


@attempt("double fork")
def _(d: Path, ports: dict[str, int]) -> None:
    """A daemon that writes once its parents are gone."""
    if os.fork():
        os.wait()
        time.sleep(0.5)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(0.2)
    (d / "kept.txt").write_text("x")
    os._exit(0)


@attempt("home directory")
def _(d: Path, ports: dict[str, int]) -> None:
    with contextlib.suppress(OSError):
        Path.home().joinpath(f".{d.parent.parent.name}-escape").write_text("x")


@attempt("shared memory")
def _(d: Path, ports: dict[str, int]) -> None:
    shared_memory.SharedMemory(f"{d.parent.parent.name}-escape", create=True, size=8)
    Path("/dev/shm", f"{d.parent.parent.name}-file").write_text("x")


@attempt("temporary directory")
def _(d: Path, ports: dict[str, int]) -> None:
    Path("/tmp", f"{d.parent.parent.name}-escape").write_text("x")
    Path("/var/tmp", f"{d.parent.parent.name}-escape").write_text("x")
    Path(tempfile.gettempdir(), "fine").write_text("x")


@attempt("TCP")
def _(d: Path, ports: dict[str, int]) -> None:
    socket.create_connection(("127.0.0.1", ports["tcp"]), timeout=1).sendall(b"x")


@attempt("TCP to this machine's address")
def _(d: Path, ports: dict[str, int]) -> None:
    socket.create_connection((socket.gethostname(), ports["tcp"]), timeout=1).sendall(b"x")


@attempt("HTTP POST")
def _(d: Path, ports: dict[str, int]) -> None:
    urllib.request.urlopen(f"http://127.0.0.1:{ports['tcp']}", data=b"x", timeout=1)


@attempt("curl")
def _(d: Path, ports: dict[str, int]) -> None:
    subprocess.run(["bash", "-c", f"echo x > /dev/tcp/127.0.0.1/{ports['tcp']}"], check=False)


@attempt("UDP")
def _(d: Path, ports: dict[str, int]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", ports["udp"]))


@attempt("unix socket")
def _(d: Path, ports: dict[str, int]) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(d.parent.parent / "server.sock"))
        client.sendall(b"x")


@attempt("abstract unix socket")
def _(d: Path, ports: dict[str, int]) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0{d.parent.parent}")
        client.sendall(b"x")


@attempt("signal")
def _(d: Path, ports: dict[str, int]) -> None:
    os.kill(ports["victim"], signal.SIGTERM)


def main() -> None:
    root, report = Path(sys.argv[1]), Path(sys.argv[2])
    ports = json.loads(sys.argv[3])
    said = {}
    for number, (name, function) in enumerate(ATTEMPTS.items()):
        try:
            function(root / "targets" / str(number), ports)
            said[name] = "seemed to work"
        except BaseException as error:  # noqa: BLE001 -- anything may be refused in any way
            said[name] = f"{type(error).__name__}: {error}"
    report.write_text(json.dumps(said))


if __name__ == "__main__":
    main()
