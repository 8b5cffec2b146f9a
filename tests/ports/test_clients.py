"""Programs that people use, through a forward: requests, a websockets client, and a browser."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import requests
from _http import read_engines
from websockets.sync.client import connect

from sandboxkit import Limits, Sandbox
from sandboxkit._session import AgentSession
from sandboxkit.conformance._tunnels import ECHO, PAGES, page, running

PAGE = """<!doctype html>
<title>before</title>
<p id="p">before</p>
<script>
  fetch("/data.json").then(answer => answer.json()).then(data => {
    document.title = data.title;
    document.getElementById("p").textContent = "the script says " + data.title;
  });
</script>
"""


def test_requests_keeps_its_connection(session: AgentSession) -> None:
    with running(session, PAGES, "0") as port:
        forward = session.ports.forward(int(port))
        with requests.Session() as client:
            for size in (1, 1000, 0, 100_000, 5):
                assert client.get(f"{forward.url}/{size}", timeout=30).content == page(size)
        assert forward.connections == 1
        forward.close()


def test_websockets(session: AgentSession) -> None:
    with running(session, ECHO) as port:
        forward = session.ports.forward(int(port))
        with connect(f"ws://127.0.0.1:{forward.port}", proxy=None, compression=None) as client:
            for message in ("hello", "", "x" * 1000, b"bytes"):
                client.send(message)
                assert client.recv(timeout=30) == message
        forward.close()


@pytest.mark.engine
def test_a_page_in_chromium(tmp_path: Path) -> None:
    """The page, its script, and what the script fetches: from a container without any network."""
    browser = shutil.which("chromium")
    assert browser is not None, "install it: make browser"
    engine = next(engine for engine in read_engines() if engine.backend == "docker")
    sandbox = Sandbox(
        "sandboxkit-test/python", "docker", engine.url, limits=Limits(allow_unenforced=True), pull="never"
    )
    files = {"site/index.html": PAGE, "site/data.json": '{"title": "from the sandbox"}'}
    with sandbox.create_session(files=files) as session:
        server = session.processes.start("python3", ["-m", "http.server", "8000", "--bind", "127.0.0.1"], cwd="site")
        session.ports.wait(8000, process=server)
        with session.ports.forward(8000) as url:
            options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
            own = (f"--user-data-dir={tmp_path}", "--virtual-time-budget=10000", "--dump-dom")
            done = subprocess.run([browser, *options, *own, url], capture_output=True, text=True, timeout=100)
    assert '<p id="p">the script says from the sandbox</p>' in done.stdout, done.stderr
