"""What the agent takes from itself and from every command: hardening.c, denylist.c."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.agent.conftest import StartAgent
from tests.agent.driver import Agent, Command, is_alive, wait_until

PYTHON = sys.executable
UID = 54321


@pytest.fixture
def confined(start_agent: StartAgent) -> Agent:
    return start_agent(arguments=["--confine"])


def landlock() -> int:
    """The version that this kernel has, or 0."""
    syscall = ctypes.CDLL(None).syscall
    syscall.restype = ctypes.c_long
    return max(int(syscall(444, None, 0, 1)), 0)


def said(command: Command) -> str:
    return bytes(command.stdout).decode().strip()


def refused(agent: Agent, *argv: str) -> bool:
    _, end = agent.run(*argv)
    return end.exit_code != 0


def test_every_agent_has_the_deny_list(any_agent: Agent) -> None:
    assert any_agent.hello["deny_list"] == "1"
    assert any_agent.hello["landlock"] == "0"
    command, _ = any_agent.run("grep", "-E", "^(Seccomp|NoNewPrivs):", "/proc/self/status")
    assert said(command).split() == ["NoNewPrivs:", "1", "Seccomp:", "2"]
    for argv in (("unshare", "--user", "true"), ("unshare", "--mount", "true"), ("chroot", "/", "true")):
        assert refused(any_agent, *argv), argv


def test_hello_tells_what_was_there_before(agent: Agent, start_agent: StartAgent) -> None:
    status = Path("/proc/self/status").read_text()
    found = {name: value.strip() for name, _, value in (line.partition(":") for line in status.splitlines())}
    assert (agent.hello["no_new_privs"], agent.hello["seccomp"]) == (found["NoNewPrivs"], found["Seccomp"])
    engine = start_agent(prefix=("setpriv", "--no-new-privs"))
    assert engine.hello["no_new_privs"] == "1"


def test_where_it_stands_in_for_an_engine_it_tells_its_own(confined: Agent) -> None:
    assert (confined.hello["no_new_privs"], confined.hello["seccomp"], confined.hello["deny_list"]) == ("1", "2", "1")
    assert confined.hello["landlock"] == str(landlock())


def test_threads_and_processes_can_still_be_made(agent: Agent) -> None:
    thread = "t = threading.Thread(target=print, args=('t',), kwargs={'flush': True}); t.start(); t.join()"
    command, end = agent.run(PYTHON, "-c", f"import os, threading; {thread}; os.fork() or os._exit(0)")
    assert (said(command), end.exit_code) == ("t", 0)


def test_confined_commands_write_to_the_workspace_tmp_and_devices_alone(confined: Agent, workspace: Path) -> None:
    if not landlock():
        return
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, tempfile.TemporaryDirectory(dir="/tmp") as free:
        Path(folder, "file").write_text("content")
        Path(folder, "folder").mkdir()
        for script in (
            *("echo x >new", "echo x >file", "echo x >>file", "rm file", "rmdir folder", "mkdir new", "ln file new"),
            *("ln -s file new", "mv file new", "mkfifo new", f"mv {free}/moved .", f"ln {free}/moved new"),
        ):
            Path(free, "moved").write_text("x")
            assert refused(confined, "sh", "-c", f"cd {folder} && {script}"), script
        assert sorted(os.listdir(folder)) == ["file", "folder"]
        assert Path(folder, "file").read_text() == "content"
        for script in (
            *("echo x >new && mkdir a && mv new a/ && rm -r a", "ln -s x y", "mkfifo z", "echo x >/dev/null"),
            *(f"cat {folder}/file", f"mv {free}/moved here", f"cd {free} && echo x >new && ln new other && rm other"),
        ):
            command, end = confined.run("sh", "-c", script)
            assert end.exit_code == 0, (script, bytes(command.stderr))


def test_confined_commands_have_terminals(confined: Agent) -> None:
    command = confined.start("sh", "-c", "tty && echo x >/dev/tty && echo y >/dev/stdout", flags=2)
    assert confined.wait(command).exit_code == 0
    assert said(command).split()[-2:] == ["x", "y"]


def test_inherited_descriptors_are_closed(binary: Path, workspace: Path) -> None:
    if os.geteuid() != 0:
        return  # the agent is non-dumpable: nobody else may look
    ends = os.pipe()
    command = [str(binary), "--workspace", str(workspace), "--confine"]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=ends) as process:
            assert process.stdout is not None
            process.stdout.read(12)
            targets = set()
            for entry in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # it is making its first pipes meanwhile
                    targets.add(os.readlink(entry))
            assert not {os.readlink(f"/proc/self/fd/{end}") for end in ends} & targets
    finally:
        for end in ends:
            os.close(end)


def test_it_becomes_the_user_it_is_told_to(binary: Path, start_agent: StartAgent, public_folder: Path) -> None:
    if os.geteuid() != 0:
        return
    workspace = public_folder / "own"
    workspace.mkdir(mode=0o700)
    agent = start_agent(workspace=workspace, arguments=["--confine", "--user", f"{UID}:{UID + 1}"])
    assert (agent.hello["uid"], agent.hello["gid"]) == (str(UID), str(UID + 1))
    assert {int(agent.hello[name], 16) for name in ("cap_eff", "cap_prm", "cap_bnd")} == {0}
    assert agent.hello["workspace_writable"] == "1"
    assert workspace.stat().st_uid == UID
    command, _ = agent.run("sh", "-c", "grep -E '^(Uid|Gid|Groups|Cap)' /proc/self/status; touch new; id -u")
    lines = {line.split(":")[0]: set(line.split(":")[1].split()) for line in said(command).splitlines() if ":" in line}
    assert lines["Uid"] == {str(UID)}
    assert lines["Gid"] == {str(UID + 1)}
    assert lines["Groups"] == set()
    assert all(lines[name] == {"0" * 16} for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"))
    assert said(command).endswith(f"\n{UID}")
    assert refused(agent, "cat", "/etc/shadow")


PARENT = """
import subprocess, sys, time
print(subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL).pid, flush=True)
time.sleep(60)
"""


def test_the_signal_for_the_parents_death_survives_that(binary: Path, public_folder: Path) -> None:
    if os.geteuid() != 0:
        return
    # setpriv's is PR_SET_PDEATHSIG, as bubblewrap's; a change of user clears it.
    agent = [str(shutil.copy2(binary, public_folder / "agent")), "--workspace", str(public_folder)]
    command = ["setpriv", "--pdeathsig", "KILL", *agent, "--confine", "--user", f"{UID}:{UID}"]
    with subprocess.Popen([PYTHON, "-c", PARENT, *command], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until(lambda: f"Uid:\t{UID}" in Path(f"/proc/{pid}/status").read_text(), "it is that user")
        parent.kill()
    wait_until(lambda: not is_alive(pid), "it is dead")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--user"],
        ["--user", "1"],
        ["--user", ":1"],
        ["--user", "1:"],
        ["--user", "a:b"],
        ["--user", "4294967295:1"],
        ["--x"],
    ],
)
def test_malformed_options_are_refused(binary: Path, arguments: list[str]) -> None:
    done = subprocess.run([binary, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 64
    assert "usage" in done.stderr


def test_a_user_it_may_not_become_ends_it(binary: Path, workspace: Path) -> None:
    if os.geteuid() == 0:
        return
    command = [str(binary), "--workspace", str(workspace), "--confine", "--user", "0:0"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 71
    assert "--user" in done.stderr
