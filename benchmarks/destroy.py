"""How long `destroy` takes against the engine's own forced removal of a running container: ratios of medians, per
engine.

    python benchmarks/destroy.py [--runs 10]

The engine removes a like container (`sleep`, no network, an anonymous volume) by the one call that is quickest: force,
with its volumes, and on Podman without the ten seconds that it gives a program to end.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import docker
import podman
from _engines import IMAGE, Engine, engines, timed

from sandboxkit import Session

COMMAND = ["sleep", "100000"]
JSON = {"Content-Type": "application/json"}


class Plain:
    """Containers of the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self._docker = engine.backend == "docker"
        self._client: Any = (
            docker.DockerClient(base_url=engine.url) if self._docker else podman.PodmanClient(base_url=engine.url)
        )

    def start(self) -> Any:
        """One that runs."""
        if self._docker:
            return self._client.containers.run(
                IMAGE, COMMAND, network_mode="none", volumes=["/workspace"], detach=True, log_config={"type": "none"}
            )
        # podman-py can't ask for an anonymous volume.
        body = {
            "image": IMAGE,
            "command": COMMAND,
            "netns": {"nsmode": "none"},
            "volumes": [{"Name": "", "Dest": "/workspace"}],
            "r_limits": [{"type": name, "soft": 1024, "hard": 1024} for name in ("nofile", "nproc")],
            "log_configuration": {"driver": "none"},
        }
        answer = self._client.api.post("/containers/create", data=json.dumps(body), headers=JSON)
        answer.raise_for_status()
        container = self._client.containers.get(answer.json()["Id"])
        container.start()
        return container

    def remove(self, container: Any) -> None:
        """Forced, with its volumes."""
        if self._docker:
            container.remove(force=True, v=True)
        else:
            query = {"force": "true", "timeout": "0", "v": "true"}
            self._client.api.delete(f"/containers/{container.id}", params=query).raise_for_status()

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()


def measure(engine: Engine, runs: int) -> None:
    """One engine."""
    sandbox, plain = engine.sandbox(), Plain(engine)
    ours, theirs = [], []
    for _ in range(runs + 1):
        session: Session = sandbox.create_session()
        session.exec("true").check()
        container = plain.start()
        ours.append(timed(session.destroy))
        theirs.append(timed(lambda container=container: plain.remove(container)))  # type: ignore[misc]
    plain.close()
    own, engines_own = statistics.median(ours[1:]), statistics.median(theirs[1:])
    print(engine)
    print(f"  destroy                  {own * 1000:8.1f} ms")
    print(f"  engine's forced removal  {engines_own * 1000:8.1f} ms")
    print(f"  ratio {own / engines_own:.2f} (must be at most 1.2)")


def main() -> None:
    """Every engine, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    for engine in engines():
        measure(engine, options.runs)


if __name__ == "__main__":
    main()
