"""EXEC: what runs, as whom, where, and what is said when it cannot run. PROTOCOL.md section 5."""

from __future__ import annotations

import errno
import os
import re
import signal
import struct
import sys
from pathlib import Path

import pytest

from tests.agent import driver
from tests.agent.conftest import UID, StartAgent
from tests.agent.driver import Agent, exec_payload


def test_output_and_exit_code(agent: Agent) -> None:
    command, end = agent.run("sh", "-c", "echo out; echo err >&2; exit 7")
    assert bytes(command.stdout) == b"out\n"
    assert bytes(command.stderr) == b"err\n"
    assert (end.how, end.code, end.reason, end.flags, end.pids) == (0, 7, driver.BY_ITSELF, 0, ())


@pytest.mark.parametrize("code", [0, 1, 126, 127, 128, 255])
def test_every_exit_code_is_kept(agent: Agent, code: int) -> None:
    _, end = agent.run("sh", "-c", f"exit {code}")
    assert (end.exit_code, end.flags) == (code, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGRTMAX])
def test_an_end_by_a_signal(agent: Agent, number: int) -> None:
    _, end = agent.run("sh", "-c", f"kill -{int(number)} $$")
    assert (end.how, end.signal, end.reason) == (1, number, driver.BY_ITSELF)


def test_no_input_is_end_of_file(agent: Agent) -> None:
    command, end = agent.run("cat")
    assert (end.exit_code, bytes(command.stdout)) == (0, b"")


def test_arguments_arrive_unchanged(agent: Agent) -> None:
    arguments: list[str | bytes] = [
        "",
        " a  b ",
        "'\"`$HOME",
        "line\nbreak",
        "-n",
        "\N{GRINNING FACE}",
        b"\xff\xfe",
        "*",
        "\\",
    ]
    command, end = agent.run("printf", "[%s]", *arguments)
    assert end.exit_code == 0
    assert bytes(command.stdout) == b"".join(b"[" + os.fsencode(argument) + b"]" for argument in arguments)


def test_a_long_argument_list(agent: Agent) -> None:
    words = [f"{number:099d}" for number in range(10_000)]  # 1 MB
    command, end = agent.run("sh", "-c", 'echo $#; printf "%s\n" "$@" | tail -n 1', "sh", *words)
    assert end.exit_code == 0
    assert bytes(command.stdout).decode().split() == ["10000", words[-1]]


def test_a_request_of_the_greatest_length(agent: Agent) -> None:
    """More than the kernel takes: the answer says so, and the agent's memory for it is given back."""
    words = ["x" * 100_000] * 41
    command, end = agent.run("true", *words)
    assert (end.exit_code, end.flags) == (126, driver.FLAG_NOT_RUN)
    assert b"too long" in command.stderr
    command, end = agent.run("echo", "still there")
    assert bytes(command.stdout) == b"still there\n"


def test_environment_is_the_images_with_the_settings_over_it(agent: Agent) -> None:
    command, _ = agent.run("env", env={"FROM_IMAGE": "overridden", "NEW": "a\nb", "EMPTY": "", "FROM_IMAG": "x"})
    lines = bytes(command.stdout).decode()
    assert "FROM_IMAGE=overridden\n" in lines
    assert lines.count("FROM_IMAGE=") == 1
    assert "NEW=a\nb\n" in lines
    assert "EMPTY=\n" in lines
    assert "FROM_IMAG=x\n" in lines
    assert re.search(r"^PATH=/usr/local/sbin:", lines, re.MULTILINE)


def test_environment_without_settings(agent: Agent) -> None:
    command, _ = agent.run("env")
    assert b"FROM_IMAGE=yes\n" in command.stdout


def test_a_thousand_settings(agent: Agent) -> None:
    command, _ = agent.run("env", env={f"NAME_{number}": str(number) for number in range(1500)})
    assert bytes(command.stdout).count(b"NAME_") == 1500


def test_path_is_the_commands_own(agent: Agent, workspace: Path) -> None:
    tool = workspace / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho from the workspace\n")
    tool.chmod(0o755)
    command, _ = agent.run("tool", env={"PATH": f"/nonexistent:{tool.parent}"})
    assert bytes(command.stdout) == b"from the workspace\n"
    command, _ = agent.run("tool", cwd="bin", env={"PATH": "/usr/bin:"})  # an empty entry is the working folder
    assert bytes(command.stdout) == b"from the workspace\n"


def test_without_path_the_usual_folders_are_searched(start_agent: StartAgent, agent_env: dict[str, str]) -> None:
    agent = start_agent(env={name: value for name, value in agent_env.items() if name != "PATH"})
    _, end = agent.run("true")
    assert end.exit_code == 0


def test_a_slash_means_relative_to_the_working_folder(agent: Agent, workspace: Path) -> None:
    folder = workspace / "deep"
    folder.mkdir()
    (folder / "run").write_text("#!/bin/sh\npwd\n")
    (folder / "run").chmod(0o755)
    command, _ = agent.run("./run", cwd="deep")
    assert Path(os.fsdecode(bytes(command.stdout)).strip()) == folder
    command, _ = agent.run("deep/run")
    assert Path(os.fsdecode(bytes(command.stdout)).strip()) == workspace


# -- what cannot run ------------------------------------------------------------------------------------------------


def refused(agent: Agent, *argv: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    command, end = agent.run(*argv, env=env)
    assert (end.how, end.flags, end.reason) == (0, driver.FLAG_NOT_RUN, driver.BY_ITSELF)
    assert bytes(command.stdout) == b""
    text = bytes(command.stderr).decode()
    assert text.startswith("sandboxkit: ")
    assert text.endswith("\n")
    assert text.count("\n") == 1
    return end.code, text


def test_not_found(agent: Agent) -> None:
    code, text = refused(agent, "no-such-command")
    assert code == 127
    assert "no-such-command" in text
    assert "not found in PATH /usr/local/sbin:" in text
    assert refused(agent, "./no-such-command")[0] == 127
    assert refused(agent, "/etc/passwd/below-a-file")[0] == 127
    assert refused(agent, "")[0] == 127
    assert refused(agent, "x" * 5000)[0] == 127
    assert refused(agent, "/" + "x" * 5000)[0] == 127
    assert refused(agent, "true", env={"PATH": "/nonexistent"})[0] == 127


def test_a_dangling_link_is_not_found(agent: Agent, workspace: Path) -> None:
    (workspace / "link").symlink_to("nowhere")
    assert refused(agent, "./link")[0] == 127
    assert refused(agent, "link", env={"PATH": str(workspace)})[0] == 127


def test_a_name_with_control_characters_stays_one_line(agent: Agent) -> None:
    code, text = refused(agent, "evil\n\x1b[31mname")
    assert code == 127
    assert "evil??[31mname" in text


@pytest.mark.parametrize("by_path", [True, False], ids=["by path", "by PATH search"])
class TestNotExecutable:
    def check(self, agent: Agent, file: Path, by_path: bool, expected: str) -> None:
        if by_path:
            code, text = refused(agent, f"./{file.name}")
        else:
            code, text = refused(agent, file.name, env={"PATH": f"/nonexistent:{file.parent}"})
        assert code == 126
        assert expected in text

    def test_no_permission(self, agent: Agent, workspace: Path, by_path: bool) -> None:
        file = workspace / "plain"
        file.write_text("echo hi")
        self.check(agent, file, by_path, "permission denied: it is not executable")

    def test_a_directory(self, agent: Agent, workspace: Path, by_path: bool) -> None:
        file = workspace / "folder"
        file.mkdir()
        self.check(agent, file, by_path, "it is a directory")

    def test_no_format(self, agent: Agent, workspace: Path, by_path: bool) -> None:
        file = workspace / "noformat"
        file.write_text("echo hi\n")
        file.chmod(0o755)
        self.check(agent, file, by_path, "neither a program for this machine nor a script with a #! line")

    def test_an_interpreter_that_is_missing(self, agent: Agent, workspace: Path, by_path: bool) -> None:
        file = workspace / "script"
        file.write_text("#! /opt/none/python -u\n")
        file.chmod(0o755)
        self.check(agent, file, by_path, "interpreter of its #! line is missing: /opt/none/python")

    def test_a_loader_that_is_missing(self, agent: Agent, workspace: Path, by_path: bool) -> None:
        binary = Path("/bin/true").read_bytes()
        loader = re.search(rb"/lib[0-9a-z/]*/ld-linux[^\0]*", binary)
        assert loader is not None
        broken = b"/none" + loader[0][5:]
        file = workspace / "foreign"
        file.write_bytes(binary.replace(loader[0], broken))
        file.chmod(0o755)
        self.check(agent, file, by_path, f"the loader it needs is missing: {broken.decode()}")

    def test_a_busy_file(self, agent: Agent, workspace: Path, by_path: bool) -> None:
        file = workspace / "busy"
        file.write_bytes(Path("/bin/true").read_bytes())
        file.chmod(0o755)
        with file.open("r+b"):
            self.check(agent, file, by_path, "it cannot be executed: Text file busy")


# -- the working folder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cwd", ["a/b", "./a//b/", "a/./b", "a/../a/b", "link", "a/up/a/b", "chain"])
def test_working_folders_beneath_the_workspace(any_agent: Agent, workspace: Path, cwd: str) -> None:
    (workspace / "a/b").mkdir(parents=True)
    (workspace / "link").symlink_to("a/b")
    (workspace / "a/up").symlink_to("..")
    (workspace / "chain").symlink_to("./a/up/link")
    command, end = any_agent.run("pwd", "-P", cwd=cwd)
    assert end.exit_code == 0
    assert bytes(command.stdout).decode().strip() == str(workspace.resolve() / "a/b")


@pytest.mark.parametrize("cwd", ["", "."])
def test_the_workspace_itself(any_agent: Agent, workspace: Path, cwd: str) -> None:
    command, _ = any_agent.run("pwd", "-P", cwd=cwd)
    assert bytes(command.stdout).decode().strip() == str(workspace.resolve())


@pytest.mark.parametrize(
    ("cwd", "number"),
    [
        ("missing", errno.ENOENT),
        ("a/missing", errno.ENOENT),
        ("file", errno.ENOTDIR),
        ("file/x", errno.ENOTDIR),
        ("to-file", errno.ENOTDIR),
        ("..", errno.EXDEV),
        ("a/../../x", errno.EXDEV),
        ("/", errno.EXDEV),
        ("/tmp", errno.EXDEV),
        ("absolute", errno.EXDEV),
        ("outside", errno.EXDEV),
        ("loop", errno.ELOOP),
        ("x" * 300, errno.ENAMETOOLONG),
        ("x/" * 3000, errno.ENAMETOOLONG),
    ],
)
def test_working_folders_that_are_refused(any_agent: Agent, workspace: Path, cwd: str, number: int) -> None:
    (workspace / "a").mkdir()
    (workspace / "file").touch()
    (workspace / "to-file").symlink_to("file")
    (workspace / "absolute").symlink_to("/tmp")
    (workspace / "outside").symlink_to("a/../../..")
    (workspace / "loop").symlink_to("loop")
    error = any_agent.wait_error(any_agent.start("touch", "ran", cwd=cwd))
    assert (error.code, error.errno) == (driver.CWD, number)
    assert error.text.endswith(".")
    assert not list(workspace.glob("**/ran"))
    _, end = any_agent.run("true")
    assert end.exit_code == 0


def test_a_missing_workspace(start_agent: StartAgent, workspace: Path) -> None:
    workspace.rmdir()
    agent = start_agent()
    assert agent.hello["workspace_writable"] == ""
    error = agent.wait_error(agent.start("true"))
    assert (error.code, error.errno) == (driver.CWD, errno.ENOENT)


# -- what the command finds -----------------------------------------------------------------------------------------


def test_signals_and_descriptors_are_clean(start_agent: StartAgent) -> None:
    """Also when the agent itself was started with signals ignored and blocked, as some engines do."""
    script = """
import os, signal, sys
for number in (1, 2, 13, 15, 34, 64):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
os.execv(sys.argv[1], sys.argv[1:])
"""
    ignoring = (sys.executable, "-I", "-S", "-c", script)
    agent = start_agent(prefix=ignoring)
    for _ in range(2):  # a spare, and one more
        command, _ = agent.run("cat", "/proc/self/status")
        status = bytes(command.stdout).decode()
        for field in ("SigBlk", "SigIgn", "SigCgt"):
            assert re.search(rf"^{field}:\t0{{16}}$", status, re.MULTILINE), status
    command, _ = agent.run(sys.executable, "-I", "-S", "-c", "import os; print(os.listdir('/proc/self/fd'))")
    assert bytes(command.stdout) == b"['0', '1', '2', '3']\n"  # 3 is the listing's own


def test_it_leads_a_session_of_its_own(agent: Agent) -> None:
    command = agent.start("cat", "/proc/self/stat", flags=driver.WANT_STARTED)
    pid = agent.wait_started(command)
    agent.wait(command)
    fields = bytes(command.stdout).decode().split(") ")[1].split()
    assert bytes(command.stdout).startswith(b"%d " % pid)
    assert (int(fields[2]), int(fields[3])) == (pid, pid)


def test_limits(start_agent: StartAgent) -> None:
    """The agent raises its own limit of descriptors; commands get what was there. Core files are off."""
    agent = start_agent(prefix=("prlimit", "--nofile=256:1024", "--core=0:4096"))
    assert agent.hello["nofile"] == "256:1024"
    assert agent.hello["core"] == "0:4096"
    command, _ = agent.run("sh", "-c", "ulimit -Sn; ulimit -Hn; ulimit -Sc")
    assert bytes(command.stdout).split() == [b"256", b"1024", b"0"]


def test_commands_are_the_first_to_die_when_memory_runs_out(agent: Agent) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    for _ in range(2):
        command, _ = agent.run("cat", "/proc/self/oom_score_adj")
        assert int(command.stdout) == min(own + 500, 1000)
    assert int(Path(f"/proc/{agent.process.pid}/oom_score_adj").read_text()) == own


def test_the_kernels_oom_killer_is_reported_only_when_it_struck(agent: Agent) -> None:
    _, end = agent.run("sh", "-c", "kill -9 $$")
    assert end.flags == 0
    _, end = agent.run("sh", "-c", "exit 137")
    assert end.flags == 0


def test_usage(agent: Agent) -> None:
    script = (
        "x = bytearray(64 << 20)\nimport time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    )
    _, end = agent.run(sys.executable, "-I", "-S", "-c", script)
    assert 100_000 <= end.cpu <= 5_000_000
    assert end.wall >= 90_000
    assert 64 << 20 <= end.max_rss <= 1 << 30
    _, end = agent.run("sleep", "0.1")
    assert 100_000 <= end.wall <= 5_000_000
    assert end.cpu < 90_000


def test_started_comes_when_asked_for(agent: Agent) -> None:
    command = agent.start("sh", "-c", "echo $$", flags=driver.WANT_STARTED)
    pid = agent.wait_started(command)
    agent.wait(command)
    assert int(command.stdout) == pid or driver.stat_fields(pid) is None
    command, _ = agent.run("true")
    assert command.pid is None


# -- requests that do not parse -------------------------------------------------------------------------------------


def malformed() -> dict[str, bytes]:
    good = exec_payload(["true"], env={"A": "b"})
    return {
        "empty": b"",
        "cut head": good[:27],
        "no strings": good[:28],
        "cut strings": good[:-1],
        "trailing": good + b"x\0",
        "argc 0": good[:20] + struct.pack("<I", 0) + good[24:],
        "argc too large": good[:20] + struct.pack("<I", 2) + good[24:],
        "argc enormous": good[:20] + struct.pack("<I", 0xFFFFFFFF) + good[24:],
        "envc enormous": good[:24] + struct.pack("<I", 0xFFFFFFFF) + good[28:],
        "no equals": exec_payload(["true", "A"])[:20] + struct.pack("<II", 1, 1) + b".\0true\0A\0",
        "no name": exec_payload(["true"], env={"": "x"}),
        "window": good[:4] + struct.pack("<I", 0x80000000) + good[8:],
        "flags": struct.pack("<I", 16) + good[4:],
    }


@pytest.mark.parametrize("name", malformed())
def test_malformed_requests(agent: Agent, name: str) -> None:
    error = agent.wait_error(agent.start_raw(malformed()[name]))
    assert (error.code, error.errno) == (driver.INVALID, 0)
    assert error.text
    _, end = agent.run("true")
    assert end.exit_code == 0


# -- as another user ------------------------------------------------------------------------------------------------


def test_without_privilege(unprivileged: Agent) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert unprivileged.hello["uid"] == str(UID)
    for _ in range(3):
        command, end = unprivileged.run("sh", "-c", "cat /proc/self/oom_score_adj; kill -9 $$")
        assert end.signal == signal.SIGKILL
        assert int(command.stdout) == min(own + 500, 1000)
    assert int(Path(f"/proc/{unprivileged.process.pid}/oom_score_adj").read_text()) == own


def test_a_command_cannot_look_into_the_agent(unprivileged: Agent) -> None:
    sleeping = unprivileged.start("sleep", "100", flags=driver.WANT_STARTED)
    fields = driver.stat_fields(unprivileged.wait_started(sleeping))
    assert fields is not None
    for target in (unprivileged.process.pid, int(fields[1])):  # the agent and the supervisor
        script = f"cat /proc/{target}/environ /proc/{target}/maps; ls /proc/{target}/fd"
        command, _ = unprivileged.run("sh", "-c", script)
        assert bytes(command.stdout) == b""
        assert command.stderr.count(b"Permission denied") == 3


# -- supervisors ----------------------------------------------------------------------------------------------------


def supervisor_of(agent: Agent, *argv: str) -> int:
    command, _ = agent.run(*(argv or ("sh", "-c", "echo $PPID")))
    return int(command.stdout)


def test_supervisors_are_kept(agent: Agent) -> None:
    """In a steady state the agent makes no process."""
    first = {supervisor_of(agent) for _ in range(10)}
    assert {supervisor_of(agent) for _ in range(50)} <= first
    assert len(first) <= 4


def test_a_supervisor_with_a_background_process_is_not_used_again(agent: Agent) -> None:
    taken = supervisor_of(agent, "sh", "-c", "echo $PPID; sleep 1000 >/dev/null &")
    assert taken not in {supervisor_of(agent) for _ in range(10)}


def test_after_a_rush_only_a_few_supervisors_are_kept(agent: Agent) -> None:
    commands = [agent.start("sh", "-c", "echo ready; cat", flags=driver.STDIN) for _ in range(50)]
    for command in commands:
        agent.wait_output(command, b"ready\n")
    assert len(driver.children(agent.process.pid)) >= 50
    for command in commands:
        agent.send_raw(driver.encode(command.channel, driver.EOF))
    for command in commands:
        assert agent.wait(command).exit_code == 0
    driver.wait_until(lambda: len(driver.children(agent.process.pid)) <= 5, "few are left")
    assert agent.run("true")[1].exit_code == 0
