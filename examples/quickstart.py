"""A CSV file goes into a sandbox without a network, its analysis comes out; then a runaway command is ended, wholly.

`make quickstart` finds or installs an engine, makes a small image, and runs this. By hand:

    SANDBOXKIT_BACKEND=docker python examples/quickstart.py
"""

from __future__ import annotations

import os
from pathlib import Path

from sandboxkit import Limits, Sandbox, Session

TABLE = Path(__file__).parent / "planets.csv"

# Mean density in g/cm3 from mass and radius; the densest planet and the number of moons.
ANALYSIS = r"""
NR > 1 {
    radius = $3 * 1e5
    density = $2 * 1e27 / (4 / 3 * 3.14159265 * radius * radius * radius)
    printf "%-8s %5.2f g/cm3\n", $1, density
    moons += $5
    if (density > most) { most = density; densest = $1 }
}
END { printf "densest: %s, moons: %d\n", densest, moons }
"""


def analyse(session: Session) -> None:
    """The file is the program's standard input; its standard output is the answer."""
    result = session.exec("awk", ["-F", ",", ANALYSIS], input=TABLE.read_bytes()).check()
    print(result.stdout, end="")
    print(f"exit code {result.exit_code} in {result.duration * 1000:.0f} ms")


def end_runaway(session: Session) -> None:
    """A busy loop and a child that hides in a session of its own: the timeout ends both."""
    result = session.shell("setsid sleep 1000 & echo still here; while :; do :; done", timeout=1, kill_grace=0)
    print(f"runaway: {result.outcome}, having said {result.stdout.strip()!r}")
    left = session.shell("cat /proc/[0-9]*/comm | grep -c -x sleep || true").stdout.strip()
    print(f"of it still running: {left}")


def main() -> None:
    """Two commands in one session; leaving the block removes the container."""
    image = os.environ.get("SANDBOXKIT_IMAGE", "docker.io/library/busybox")
    # Rootless engines on cgroup v1 can't bound memory; the example runs there too.
    sandbox = Sandbox(image, limits=Limits(timeout=30, allow_unenforced=True))
    engine = sandbox.engine()
    print(f"{engine.backend} {engine.version}{' rootless' if engine.rootless else ''}, network off")
    with sandbox.create_session() as session:
        analyse(session)
        end_runaway(session)


if __name__ == "__main__":
    main()
