from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.agent import build
from tests.agent.driver import Agent, descendants, wait_gone

# As PID 1 of a namespace of its own, as in a container: `kill -9 -1` is harmless to everybody else.
OWN_USER = () if os.geteuid() == 0 else ("--user", "--map-root-user")
NAMESPACE = ("unshare", *OWN_USER, "--fork", "--pid", "--mount-proc", "--kill-child")

UID = 50_000 + os.getpid() % 10_000 if os.geteuid() == 0 else os.geteuid()  # nobody else is it

StartAgent = Callable[..., Agent]


@pytest.fixture(scope="session", params=["release", "sanitized"])
def binary(request: pytest.FixtureRequest) -> Path:
    """The agent under test: every test runs on what ships, and under the sanitizers."""
    return build.release() if request.param == "release" else build.sanitized()


@pytest.fixture(scope="session")
def is_sanitized(binary: Path) -> bool:
    return binary.name.startswith("sanitized")


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="agent-test-") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def workspace(public_folder: Path) -> Path:
    folder = public_folder / "workspace"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def sanitizer_reports(public_folder: Path) -> Iterator[Path]:
    """Where the sanitizers write; a report of any process of the agent fails the test.

    A supervisor has no standard error, so reports go to files. Leaks are looked for by the fuzzer: the leak checker
    attaches to its process, which a non-dumpable one refuses.
    """
    folder = public_folder / "sanitizer"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    reports = [path.read_text(errors="replace") for path in folder.iterdir()]
    assert not reports, "\n".join(reports)


@pytest.fixture
def agent_env(sanitizer_reports: Path) -> Mapping[str, str]:
    """The environment of the image, as commands see it."""
    log = f"log_path={sanitizer_reports}/report"
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "FROM_IMAGE": "yes",
        "ASAN_OPTIONS": f"detect_leaks=0:{log}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{log}",
    }


@pytest.fixture
def start_agent(binary: Path, workspace: Path, agent_env: Mapping[str, str]) -> Iterator[StartAgent]:
    """Starts agents as local processes; at the end each must go, by itself, with everything it started."""
    agents: list[Agent] = []

    def start(**options: object) -> Agent:
        agent = Agent(**{"binary": binary, "workspace": workspace, "env": agent_env, **options})  # type: ignore[arg-type]
        agents.append(agent)
        return agent

    yield start
    try:
        for agent in agents:
            below = list(descendants(agent.process.pid))
            if agent.process.poll() is None:
                assert agent.close() == 0
            wait_gone(below)
    finally:
        for agent in agents:
            agent.destroy()


@pytest.fixture
def agent(start_agent: StartAgent) -> Agent:
    return start_agent()


@pytest.fixture
def unprivileged(start_agent: StartAgent, binary: Path, public_folder: Path) -> Agent:
    """As in a container with a user set: an agent that may not even open its own /proc files."""
    if os.geteuid() != 0:
        return start_agent()
    copy = shutil.copy2(binary, public_folder / "agent")
    return start_agent(binary=copy, prefix=("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"))


@pytest.fixture
def pid1(start_agent: StartAgent) -> Agent:
    """An agent that is PID 1, for commands that kill whatever they can reach."""
    agent = start_agent(prefix=NAMESPACE)
    assert agent.hello["pid"] == "1"
    return agent


@pytest.fixture(scope="session")
def old_kernel() -> Path:
    """Runs a program without the system calls and files that came to Linux late."""
    return build.tool("old_kernel")


@pytest.fixture(params=["local", "pid1", "old_kernel"])
def any_agent(request: pytest.FixtureRequest, start_agent: StartAgent, old_kernel: Path) -> Agent:
    """The ways to run: an ordinary process, PID 1, and with the fallbacks for old kernels."""
    prefixes = {"local": (), "pid1": NAMESPACE, "old_kernel": (str(old_kernel),)}
    return start_agent(prefix=prefixes[request.param])
