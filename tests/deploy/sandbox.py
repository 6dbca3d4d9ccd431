"""A machine without Docker that does what Docker would do: layers, read-only roots, users, and a network of its own."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
#: Names in the sandbox that mean this machine.
HOSTS = "127.0.0.1 localhost redis bots.example.com fakes\n"
_CLONE_NEWNET = 0x40000000
#: Keeps the namespaces until its standard input ends. It mounts a disk of its own, and starts the loopback interface.
_HOLDER = """
import fcntl, socket, struct, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", sys.argv[1]], check=True)
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 1))
print("ready", flush=True)
sys.stdin.read()
"""


def why_not() -> str:
    """Return why this machine cannot run a sandbox, "" where it can."""
    if sys.platform != "linux" or os.geteuid():
        return "the sandbox mounts file systems: run the tests as root on Linux"
    tools = [
        name
        for name in ("unshare", "nsenter", "setpriv", "chroot", "mount")
        if not shutil.which(name)
    ]
    return f"the sandbox needs {', '.join(tools)}" if tools else ""


class Sandbox:
    """Layers of files over the machine's own root. Its mounts and its network vanish when the `with` block ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        #: What runtimes of containers set, and systemd, for each process.
        self.environ: dict[str, str] = {
            "HOME": "/",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }

    def __enter__(self) -> Sandbox:
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--net", sys.executable, "-c", _HOLDER, str(self._folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout
        assert self._holder.stdout.readline() == "ready\n"
        self._inside = ThreadPoolExecutor(1, initializer=self._enter_network)
        self._add_base()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._inside.shutdown()
        assert self._holder.stdin
        self._holder.stdin.close()
        self._holder.wait()

    def layer(self, name: str) -> Path:
        """Return a layer's folder, as this process reaches it."""
        path = Path(f"/proc/{self._holder.pid}/root{self._folder}/{name}")
        path.mkdir(exist_ok=True)
        return path

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in a thread whose sockets are in the sandbox's network. Its threads' sockets are too."""
        return self._inside.submit(function).result()

    def command(
        self, words: Sequence[str], *, layers: Sequence[str], writes: str = "", user: str = "0:0", cwd: str = "/",
        environ: Mapping[str, str] | None = None, mounts: Mapping[str, str] | None = None, network: bool = False,
    ) -> list[str]:  # fmt: skip
        """Return the command line that runs `words` on layers, the uppermost first.

        `writes` is the layer that takes changes; without it the root is read-only. `mounts` are folders of the disk of
        the sandbox ("" for an empty one) by their places, where the process may write. `network` leaves it the
        machine's own network, to install packages.
        """
        disk, root = self._folder, self._folder / "root"
        lower = ":".join([*(str(disk / layer) for layer in layers), str(disk / "base"), "/"])
        upper = f",upperdir={disk / writes},workdir={disk / 'work'}" if writes else ""
        lines = [
            f"mkdir -p {disk}/work {root}",
            f"mount -t overlay -o lowerdir={lower}{upper} overlay {root}",
            f"mount --rbind /dev {root}/dev && mount --rbind /proc {root}/proc",
            # Nothing of the checkout may be found by chance.
            f"mount -t tmpfs -o ro tmpfs {root}{ROOT}" if not str(ROOT).startswith("/tmp/") else "",
            f"mount -t tmpfs -o {'mode=1777' if writes else 'ro'} tmpfs {root}/tmp"
            if "/tmp" not in (mounts or {})
            else "",
        ]
        for place, source in (mounts or {}).items():
            lines.append(f"mount --bind {disk / source} {root}{place}")
        uid, gid = user.split(":")
        rights = f"--reuid={uid} --regid={gid} --clear-groups"
        if uid != "0":
            rights += " --no-new-privs --bounding-set=-all --inh-caps=-all"
        clean = " ".join(
            shlex.quote(f"{name}={value}")
            for name, value in {**self.environ, **(environ or {})}.items()
        )
        inner = (
            f"cd {shlex.quote(cwd)} && exec setpriv {rights} -- env -i {clean} {shlex.join(words)}"
        )
        lines.append(f"exec chroot {root} /bin/sh -c {shlex.quote(inner)}")
        script = "set -e\n" + "\n".join(filter(None, lines))
        enter = [
            "nsenter",
            f"--target={self._holder.pid}",
            "--mount",
            *([] if network else ["--net"]),
        ]
        return [*enter, "unshare", "--mount", "--", "sh", "-c", script]

    def run(self, words: Sequence[str], **settings: object) -> str:
        """Run a command to its end, and return its output. Fails unless it succeeds."""
        done = subprocess.run(
            self.command(words, **settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )  # type: ignore[arg-type]
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}"
        return done.stdout

    @contextmanager
    def running(
        self, words: Sequence[str], *, log: Path, **settings: object
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command until the block ends. SIGTERM must end it with 0."""
        with log.open("ab") as file:
            process = subprocess.Popen(self.command(words, **settings), stdout=file, stderr=file)  # type: ignore[arg-type]
        self._processes.append(process)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()
            self._processes.remove(process)

    def _enter_network(self) -> None:
        with Path(f"/proc/{self._holder.pid}/ns/net").open() as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.setns(namespace.fileno(), _CLONE_NEWNET) == 0, os.strerror(
                ctypes.get_errno()
            )

    def _add_base(self) -> None:
        """Add what an image with Python has: `python` on the PATH, which every user may run, and names of hosts."""
        base, python = self.layer("base"), Path(sys.base_prefix).resolve()
        for parent in (*reversed(python.parents), python):
            (base / parent.relative_to("/")).mkdir(mode=0o755, exist_ok=True)
        for folder in ("etc", "opt", "var", "var/lib", "data"):
            (base / folder).mkdir(mode=0o755, exist_ok=True)
        if not (python / "bin" / "python").exists():
            (base / f"{python}/bin".lstrip("/")).mkdir(mode=0o755, exist_ok=True)
            (base / f"{python}/bin/python".lstrip("/")).symlink_to(
                f"python3.{sys.version_info.minor}"
            )
        (base / "etc/hosts").write_text(HOSTS)
        self.environ["PATH"] = f"{python}/bin:{self.environ['PATH']}"
        # A Python of Debian's asks for this; that of an image does not.
        self.environ["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
