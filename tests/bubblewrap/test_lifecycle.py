"""A session's processes: found, ended and gone, whoever dies first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxkit_bubblewrap import BubblewrapBackend
from sandboxkit_bubblewrap._cgroups import find_controllers
from sandboxkit_bubblewrap._process import end_all, records
from sandboxkit_bubblewrap._view import View

from sandboxkit import ConfigError, EngineError, Limits, Sandbox, Session, SessionLostError, SessionState
from sandboxkit.errors import SessionNotFoundError
from tests.support.ordinary import ROOT
from tests.support.waiting import wait_until

HOST = """
import sys, time
from sandboxkit import Limits, Sandbox

sandbox = Sandbox.host(limits=Limits(allow_unenforced=True), labels={"test": sys.argv[1]})
session = sandbox.create_session()
print(session.id, flush=True)
if sys.argv[2] == "busy":
    session.shell("setsid sleep 1000 & echo x >/workspace/file; sleep 1000", timeout=1000)
while sys.argv[2] == "many":
    sandbox.create_session()
time.sleep(1000)
"""


@pytest.fixture
def label() -> Iterator[str]:
    """Of this test's sessions. Whatever the test did, none is left after it."""
    label = uuid.uuid4().hex
    yield label
    for record in records():
        if record.labels.get("test") == label:
            end_all(record, 10)


@contextlib.contextmanager
def host_process(label: str, kind: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has made a session, and the session's id. It is killed at the end, if not before."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "backends"), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", HOST, label, kind],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    ) as host:
        try:
            assert host.stdout is not None
            yield host, host.stdout.readline().strip()
        finally:
            host.kill()


def names(label: str) -> set[str]:
    return {record.name for record in records() if record.labels.get("test") == label}


def descendants(pid: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return found - {pid}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def groups() -> set[Path]:
    """Folders of cgroups, of any session."""
    return {folder for parent in set(find_controllers().parents.values()) for folder in parent.glob("sandboxkit.*")}


def test_sigkill_of_the_host_leaves_no_process_and_no_folder(
    label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    with host_process(label, "busy") as (host, session_id):
        name = f"sandboxkit-{session_id}"
        assert names(label) == {name}
        # Keeper, bubblewrap, agent, and of two commands a supervisor and its processes.
        everyone = wait_until(lambda: found if len(found := descendants(host.pid)) >= 6 else set(), "the command runs")
        assert all(map(is_alive, everyone))
        host.kill()
    wait_until(lambda: not any(map(is_alive, everyone)), "no process is left", 2)
    wait_until(lambda: not names(label), "no sandbox is left", 2)
    wait_until(lambda: not any(name in folder.name for folder in groups()), "no cgroup is left", 2)
    assert list(tmp_path.iterdir()) == []
    assert not [path for place in ("/tmp", "/var/tmp", "/dev/shm") for path in os.listdir(place) if name in path]


@pytest.mark.timeout(300)
def test_sigkill_in_the_midst_of_a_creation_leaves_nothing(label: str) -> None:
    for number in range(int(os.environ.get("SANDBOXKIT_TEST_ROUNDS", "12"))):
        with host_process(label, "many") as (host, _):
            threading.Event().wait(0.003 * number)
            everyone = descendants(host.pid)
            host.kill()
        wait_until(lambda: not names(label), "no sandbox is left", 5)
        wait_until(lambda: not any(map(is_alive, everyone)), "no process is left", 5)  # noqa: B023
        assert not [folder for folder in groups() if f".{host.pid}." in folder.name]


def test_a_session_outlives_the_thread_that_made_it(limits: Limits) -> None:
    made: list[Session] = []
    thread = threading.Thread(target=lambda: made.append(Sandbox.host(limits=limits).create_session()))
    thread.start()
    thread.join()
    with made[0] as session:
        threading.Event().wait(0.2)
        assert session.exec("echo", ["alive"]).stdout == "alive\n"


def test_a_session_is_out_of_reach_of_the_terminals_signals(backend: BubblewrapBackend, limits: Limits) -> None:
    with Sandbox.host(limits=limits).create_session():
        groups_of_children = {os.getpgid(pid) for pid in descendants(os.getpid()) if _is_shell(pid)}
    assert groups_of_children
    assert os.getpgid(0) not in groups_of_children


def _is_shell(pid: int) -> bool:
    return _command(pid) == b"/bin/sh"


def test_sessions_of_other_processes_are_listed_and_can_be_removed(label: str, backend: BubblewrapBackend) -> None:
    with host_process(label, "idle") as (host, session_id):
        name = f"sandboxkit-{session_id}"
        (status,) = backend.list({"test": label})
        assert (status.id, status.name, status.running) == (name, name, True)
        assert status.labels["sandboxkit.owner.pid"] == str(host.pid)
        assert backend.list({"test": ""})
        assert backend.list({"test": "another"}) == []
        assert backend.inspect(name).running
        everyone = descendants(host.pid)
        backend.remove(name)
        assert backend.list({"test": label}) == []
        with pytest.raises(SessionNotFoundError):
            backend.inspect(name)
        wait_until(lambda: not any(map(is_alive, everyone)), "no process is left")
        assert not any(name in folder.name for folder in groups())


def test_a_name_is_taken_once(label: str, limits: Limits) -> None:
    with host_process(label, "idle") as (_, taken):
        with pytest.raises(ConfigError, match=taken) as caught:
            Sandbox.host(limits=limits).create_session(id=taken)
        assert caught.value.details["field"] == "id"
        assert names(label) == {f"sandboxkit-{taken}"}
    # It is free as soon as its process is gone, with no help of anybody.
    Sandbox.host(limits=limits).create_session(id=taken).destroy()


@pytest.mark.parametrize("victim", ["agent", "bubblewrap", "keeper"])
def test_whichever_process_is_killed_the_others_go_and_the_session_is_lost(limits: Limits, victim: str) -> None:
    before = descendants(os.getpid())
    session = Sandbox.host(limits=limits).create_session()
    background = session.shell("setsid sleep 1000 & echo").background_pids
    assert background
    everyone = descendants(os.getpid()) - before
    (keeper,) = (pid for pid in everyone if _is_shell(pid))
    (bubblewrap,) = (pid for pid in everyone if _command(pid).endswith(b"bwrap"))
    (agent,) = (pid for pid in everyone if _parent(pid) == bubblewrap)
    os.kill({"agent": agent, "bubblewrap": bubblewrap, "keeper": keeper}[victim], signal.SIGKILL)
    wait_until(lambda: session.state is SessionState.LOST, "the session is lost")
    with pytest.raises(SessionLostError):
        session.exec("true")
    wait_until(lambda: not any(map(is_alive, everyone)), "no process is left")
    session.destroy()
    assert not any(session.id in folder.name for folder in groups())


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    return b""


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def test_the_agent_has_three_descriptors_of_the_host(limits: Limits) -> None:
    if os.geteuid() != 0:
        return  # nobody else may look
    before = descendants(os.getpid())
    with Sandbox.host(limits=limits).create_session() as session:
        session.exec("true")
        everyone = descendants(os.getpid()) - before
        (agent,) = (pid for pid in everyone if _command(pid).startswith(b"/.sandboxkit") and _is_pid_1(pid))
        targets = {}
        for fd in Path(f"/proc/{agent}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it may be making its next supervisor
                targets[int(fd.name)] = os.readlink(fd)
    assert targets.pop(0) == targets.pop(1)
    assert "memfd" in targets.pop(2)
    own = {
        target
        for target in targets.values()
        if not target.startswith(("/workspace", "anon_inode:", "socket:", "pipe:", "/proc/", "/sys/"))
    }
    assert own == set()


def _is_pid_1(pid: int) -> bool:
    return any(
        line.startswith("NSpid:") and line.endswith("\t1")
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )


def test_an_error_in_the_setup_is_told_with_bubblewraps_own_words(
    limits: Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandboxkit_bubblewrap._view import View

    def of_agent(self: View, binary: Path) -> None:
        self.add("--ro-bind", tmp_path / "missing", "/.sandboxkit/agent")

    monkeypatch.setattr(View, "of_agent", of_agent)
    with pytest.raises(EngineError, match="missing"):
        Sandbox.host(limits=limits).create_session()


def test_nothing_stays_open_in_the_host(limits: Limits) -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    Sandbox.host(limits=limits).create_session().destroy()
    before = held()
    for _ in range(5):
        with Sandbox.host(limits=limits).create_session() as session:
            session.exec("true")
    wait_until(lambda: held() <= before, "all is closed")
