"""Commands from a notebook: a real IPython kernel, its interrupt, its restart. On the agent without an engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 60.0

# Jupyter's own use of sockets and event loops is not what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

OPEN = """
from pathlib import Path
from sandboxkit import Limits, Sandbox
from tests.support.local import LocalBackend
session = Sandbox("host", LocalBackend(Path({folder!r})), limits=Limits(allow_unenforced=True)).create_session()
"""
TREE = 'echo $$ >>pids; setsid sh -c "echo \\$\\$ >>pids; exec sleep 1000" & trap "" TERM; echo up; wait; sleep 1000'


class Notebook:
    """A kernel with a session in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "backends")))}
        self.manager: KernelManager = KernelManager()
        self.manager.start_kernel(env=environment, cwd=str(folder))
        client = self.manager.client()
        assert isinstance(client, BlockingKernelClient)
        self.client = client
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        assert self.run(OPEN.format(folder=str(folder)))["status"] == "ok"

    def start(self, code: str) -> str:
        """Begin a cell; its id."""
        cell: str = self.client.execute(code)
        return cell

    def reply(self, cell: str) -> dict[str, Any]:
        """How a cell ended."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            message = self.client.get_shell_msg(timeout=PATIENCE)
            if message["parent_header"]["msg_id"] == cell:
                content: dict[str, Any] = message["content"]
                return content
        raise AssertionError("the cell never ended")

    def run(self, code: str) -> dict[str, Any]:
        return self.reply(self.start(code))

    def output(self, code: str) -> str:
        """What a cell prints that must end well."""
        while True:
            cell = self.start(code)
            text, reply = self.printed(cell), self.reply(cell)
            # For a moment after a cell that failed, the kernel takes others for its queue's and drops them.
            if reply["status"] != "aborted":
                assert reply["status"] == "ok", reply
                return text

    def printed(self, cell: str) -> str:
        """What was printed by that cell and no other, once it has ended."""
        text = ""
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] == "stream":
                text += message["content"]["text"]
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return text

    def wait_for_output(self, cell: str) -> None:
        """Until the cell has printed something."""
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") == cell and message["msg_type"] == "stream":
                return

    def pids(self, number: int) -> list[int]:
        """The processes of TREE, all of them, all alive."""
        (path,) = self.folder.glob("sandboxkit-*/workspace")
        wait(lambda: path.joinpath("pids").exists() and path.joinpath("pids").read_text().count("\n") == number)
        found = [int(line) for line in path.joinpath("pids").read_text().split()]
        path.joinpath("pids").unlink()
        assert all(is_alive(pid) for pid in found)
        return found

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    made = Notebook(tmp_path_factory.mktemp("kernel"))
    yield made
    made.close()


@pytest.mark.parametrize(
    "code",
    [
        f"session.shell({TREE!r})",
        f"for event in session.exec_stream('sh', ['-c', {TREE!r}]): pass",
        f"session.shell({TREE!r}, on_stdout=print)",
    ],
    ids=["exec", "exec_stream", "callback"],
)
def test_an_interrupted_cell_kills_the_tree_and_the_session_goes_on(notebook: Notebook, code: str) -> None:
    """Also under ipykernel's interrupt."""
    cell = notebook.start(code)
    pids = notebook.pids(2)
    notebook.manager.interrupt_kernel()
    reply = notebook.reply(cell)
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert [pid for pid in pids if is_alive(pid)] == []
    assert notebook.output("print(session.exec('echo', ['next']).stdout, end='')") == "next\n"


def test_interrupts_in_a_row_never_spoil_the_session(notebook: Notebook) -> None:
    """The kernel's interrupt comes at any moment of a busy cell."""
    for number in range(10):
        cell = notebook.start("import itertools\nprint('up')\nfor n in itertools.count(): session.exec('true').check()")
        notebook.wait_for_output(cell)
        time.sleep(0.003 * (number % 4))  # waits for nothing: the moment is meant to differ
        notebook.manager.interrupt_kernel()
        reply = notebook.reply(cell)
        assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
        assert notebook.output(f"print(session.exec('echo', ['{number}']).stdout, end='')") == f"{number}\n"


def test_output_lands_in_the_cell_that_asked_for_it(notebook: Notebook) -> None:
    """ipykernel#1186: prints from other threads land in the wrong cell."""
    first = notebook.output("session.shell('echo one; echo two >&2', on_stdout=print, on_stderr=print);")
    assert sorted(first.split()) == ["one", "two"]
    assert notebook.output("print('second')") == "second\n"


def test_a_cell_may_run_while_an_event_loop_does(notebook: Notebook) -> None:
    """A loop is running in every kernel: sync calls must not mind."""
    code = "import asyncio\nasync def f(): return session.exec('echo', ['x']).stdout\nprint(await f(), end='')"
    assert notebook.output(code) == "x\n"


def test_a_killed_kernel_leaves_nothing(tmp_path: Path) -> None:
    """ipykernel#462: a restart may SIGKILL the kernel in mid-cell."""
    notebook = Notebook(tmp_path)
    try:
        notebook.start(f"session.shell({TREE!r})")
        pids = notebook.pids(2)
        notebook.manager.shutdown_kernel(now=True)
        wait(lambda: not any(is_alive(pid) for pid in pids))
        wait(lambda: not list(tmp_path.glob("sandboxkit-*")))
    finally:
        notebook.close()
