"""exec over the fake agent: what is asked for is what is sent, what comes is what is returned."""

from __future__ import annotations

from sandboxkit._frames import FrameType
from sandboxkit._session import AgentSession

from .fake_agent import FakeAgent


def test_echo(session: AgentSession, agent: FakeAgent) -> None:
    assert session.exec("echo", ["hello", "wörld"]).stdout == "hello wörld"
