"""Reaching the agent of a session without an owner's stream: one engine exec of its program, to connect (§7)."""

from __future__ import annotations

import secrets
import threading
import time

from ._channel import Connection
from ._frames import Hello
from .backend import AGENT_FOLDER, Backend, Feature
from .backend_parts import running_of
from .errors import EngineError, SessionBusyError, SessionLostError

__all__ = ["TOKEN_VARIABLE", "connect_agent", "fresh_token"]

TOKEN_VARIABLE = "SANDBOXKIT_TOKEN"  # noqa: S105 - a name
"""In the container's environment, which the engine gives to what it runs there. PID 1 keeps it from every command."""

_HELLO_TIMEOUT = 60.0
_LISTENING = 20.0
"""Seconds from the container's start to the moment when its agent listens, on a badly loaded host."""


def fresh_token() -> str:
    """32 random bytes as 64 characters, which is as much as the agent compares."""
    return secrets.token_hex(32)


def connect_agent(backend: Backend, container_id: str, *, takeover: bool = False) -> tuple[Connection, Hello]:
    """A connection that has said HELLO. SessionBusyError when another one is live and `takeover` is not set.

    After any exception there is no connection.
    """
    running = running_of(backend, Feature.DETACHED, "detached sessions")
    command = [f"{AGENT_FOLDER}/agent", "connect", *(["--takeover"] if takeover else [])]
    end = time.monotonic() + _LISTENING
    while True:
        connection = Connection(running.connect(container_id, command))
        try:
            connection.start()
            hello = connection.wait_hello(_HELLO_TIMEOUT)
            _raise_if_refused(hello)
            return connection, hello
        except SessionLostError as lost:
            connection.close(lost)
            # The engine says that a container is started before its program has done anything.
            if time.monotonic() > end or not backend.inspect(container_id).running:
                raise
            threading.Event().wait(0.01)
        except BaseException:
            connection.close(SessionLostError("The connection was not wanted."))
            raise


def _raise_if_refused(hello: Hello) -> None:
    refused = hello.facts.get("refused")
    if refused == "busy":
        raise SessionBusyError(
            "Another process is attached to this session. Wait until it has gone, or pass takeover=True to end its "
            "connection and the commands it runs."
        )
    if refused is not None:
        raise EngineError(
            f"The session's agent refused the connection ({refused[:40]}). Was its container made by hand?"
        )
