"""How fast a command's output is captured: 256 MiB through `exec` against the engine's own client into a pipe.

    python benchmarks/throughput.py [--mib 256] [--runs 3]

The SDK's `exec_run` is measured at 4 MiB: its time grows with the square of the size. Needs `make images`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

from _engines import Engine, engine_container, engines, interleaved, piped

from sandboxkit import Limits

MIB = 1 << 20
SDK_MIB = 4


def measure(engine: Engine, mib: int, runs: int) -> None:
    """One engine: MiB/s of each, then the ratio."""
    size = mib * MIB
    client, sdk = f"{engine.backend} exec", f"{engine.backend} SDK exec_run"
    command = ("head", "-c", str(size), "/dev/zero")
    limits = Limits(max_output_bytes=size, timeout=300, allow_unenforced=True)

    def same(counted: int, wanted: int) -> None:
        assert counted == wanted, f"{counted} bytes came, not {wanted}"

    with engine_container(engine) as container, engine.sandbox(limits).create_session() as session:
        small = ("head", "-c", str(SDK_MIB * MIB), "/dev/zero")
        calls: dict[str, Callable[[], object]] = {
            "sandboxkit": lambda: same(len(session.exec(command[0], command[1:]).stdout_bytes), size),
            client: lambda: same(piped(engine.cli("exec", container.id, *command)), size),
            # podman-py leaves the engine's frame headers in its output, so the count is not checked.
            sdk: lambda: container.exec_run(*small),
        }
        times = interleaved(calls, dict.fromkeys(calls, runs))
    rates = {name: (SDK_MIB if name == sdk else mib) / statistics.median(found) for name, found in times.items()}
    print(engine)
    for name, rate in rates.items():
        print(f"  {name:22} {rate:8.1f} MiB/s" + (f" (at {SDK_MIB} MiB)" if name == sdk else f" (at {mib} MiB)"))
    print(f"  sandboxkit / {client}: {rates['sandboxkit'] / rates[client]:.2f} (must be at least 1.3)")


def main() -> None:
    """Every engine, one after the other."""
    parser = argparse.ArgumentParser(description="Throughput of captured output.")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    for engine in engines():
        measure(engine, options.mib, options.runs)


if __name__ == "__main__":
    main()
