"""A sandbox without an engine: from nothing to the first result, a warm command, the end, against a local subprocess.

    python benchmarks/bubblewrap.py [--runs 300] [--cold 100] [--url bwrap:///usr/bin/bwrap]

All take turns within one run, so that a busy machine slows them alike; the ratios are what counts. `bwrap alone` is
the same program making a sandbox with the least in it and running `true`: what it and the kernel cost by themselves.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from collections.abc import Callable

from _engines import interleaved

from sandboxkit import Limits, Sandbox, Session

TRUE = ["/usr/bin/env", "true"]


class Cold:
    """Three steps of one session's life, timed apart: the calls take turns, and each makes what the next one needs."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._session: Session | None = None

    def first_result(self) -> None:
        """From nothing to the result of a command."""
        self._session = self._sandbox.create_session()
        self._session.exec("true").check()

    def destroy(self) -> None:
        """Until nothing is left."""
        assert self._session is not None
        self._session.destroy()


def bwrap_alone(path: str) -> Callable[[], object]:
    """Every namespace, /usr, /proc, /dev, /tmp."""
    namespaces = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--as-pid-1"]
    links = ["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin"]
    files = ["--ro-bind", "/usr", "/usr", *links, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    command = [path, *namespaces, *files, *TRUE]
    return lambda: subprocess.run(command, capture_output=True, check=True)


def local() -> None:
    """What a warm command is compared with."""
    subprocess.run(["true"], capture_output=True, check=True)


def report(title: str, times: dict[str, list[float]], base: str) -> None:
    """A line each: median, 95th percentile, ratio."""
    print(title)
    unit = statistics.median(times[base])
    for name, found in times.items():
        found.sort()
        median, p95 = statistics.median(found), found[int(len(found) * 0.95)]
        print(f"  {name:24} median {median * 1000:8.3f} ms   p95 {p95 * 1000:8.3f} ms   {median / unit:6.2f} x {base}")


def main() -> None:
    """On this host, as whoever runs it: root's sandboxes have cgroups to set up, an ordinary user's may not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--cold", type=int, default=100)
    parser.add_argument("--url", default=None, help="bwrap:// and the path of another bwrap")
    options = parser.parse_args()
    sandbox = Sandbox("host", "bubblewrap", options.url, limits=Limits(allow_unenforced=True))
    info = sandbox.engine()
    limits = ", ".join(sorted(info.enforceable))
    print(f"bubblewrap {info.version} at {info.url}, {'ordinary user' if info.rootless else 'root'}; limits: {limits}")
    cold = Cold(sandbox)
    calls: dict[str, Callable[[], object]] = {
        "first result": cold.first_result,
        "destroy": cold.destroy,
        "bwrap alone": bwrap_alone(info.url.removeprefix("bwrap://")),
        "subprocess.run": local,
    }
    report("cold", interleaved(calls, dict.fromkeys(calls, options.cold)), "subprocess.run")
    with sandbox.create_session() as session:
        calls = {"exec": lambda: session.exec("true"), "subprocess.run": local}
        report("warm", interleaved(calls, dict.fromkeys(calls, options.runs)), "subprocess.run")


if __name__ == "__main__":
    main()
