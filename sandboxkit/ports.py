"""`session.ports`: the sandbox's servers for the host, and one of the host's services for the sandbox."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, TypeAlias

from typing_extensions import Self

from . import _validate as check
from ._forwards import ForwardServer, PumpOwner, ServiceExposer
from ._frames import Refusal
from ._port_watch import PortHost, PortWatch
from ._relay import Relay, close_socket
from .errors import PortError

__all__ = ["Exposed", "Forward", "SessionPorts"]

Target: TypeAlias = int | str

_LOCAL = "127.0.0.1"
_PATIENCE = 10.0  # seconds for the agent's answer, and for the end of what is closed
_TARGETS = "a port from 1 to 65535, the absolute path of a unix socket (107 bytes at most), or @ and an abstract name"


class PortsHost(PortHost, Protocol):
    """The session, as its ports need it."""

    @property
    def relay(self) -> Relay: ...

    def raise_if_unusable(self) -> None:
        """Raise why nothing can be done in the session any more, if so."""


class _Listener:
    # What a forward and an exposed service are for their user: they count connections, and are closed once.

    def __init__(self, server: PumpOwner) -> None:
        self._server = server
        self._pid = os.getpid()

    @property
    def connections(self) -> int:
        """How many there have been."""
        return self._server.counters[0]

    def close(self) -> None:
        """Listen no more and end its connections at once. May be called twice; a forked child's call does nothing."""
        if os.getpid() == self._pid:
            self._server.close(_PATIENCE)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Forward(_Listener):
    """A port of the host that leads into the sandbox, see `SessionPorts.forward`. Every method may be called anywhere.

    As a context manager it gives `url` and is closed at the end. It ends with the session.
    """

    def __init__(self, server: ForwardServer, target: Target, port: int) -> None:
        super().__init__(server)
        self.target = target
        self.host = _LOCAL
        self.port = port

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`. Without a slash at the end, so that a path can follow."""
        return f"http://{self.host}:{self.port}"

    @property
    def bytes_to_sandbox(self) -> int:
        """Of all connections so far."""
        return self._server.counters[1]

    @property
    def bytes_from_sandbox(self) -> int:
        """Of all connections so far."""
        return self._server.counters[2]

    def __enter__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"<Forward {self.host}:{self.port} to {self.target}>"


class Exposed(_Listener):
    """A service of the host for the sandbox, see `SessionPorts.expose`. A context manager; it ends with the session."""

    def __init__(self, exposer: ServiceExposer, port: int, host: str, host_port: int) -> None:
        super().__init__(exposer)
        self.port = port
        """Inside the sandbox, on 127.0.0.1."""
        self.host = host
        self.host_port = host_port

    def __enter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<Exposed {self.host}:{self.host_port} as {self.port}>"


class SessionPorts(PortWatch):
    """The ports of one session. Every method may be called from any thread.

    Nothing here needs a published port, a program in the image, or a network: bytes travel through the agent.
    ConfigError names a bad argument; PortError says that a port can't be had. After either nothing is left open.
    """

    def __init__(self, session: PortsHost) -> None:
        super().__init__(session)
        self._session = session

    @contextlib.contextmanager
    def _tunnel(self, port: int) -> Iterator[tuple[str, int]]:
        forward = self.forward(port)
        with forward:
            yield forward.host, forward.port

    def forward(self, target: Target, host_port: int = 0) -> Forward:
        """Listen on 127.0.0.1 of the host and lead every connection to `target` in the sandbox.

        `target` is a TCP port of the sandbox's loopback (127.0.0.1, else ::1) or a unix socket, by path or `@name`.
        `host_port` 0 takes any free one. The server may start later, and again: where none listens the connection is
        reset and the forward lives on. 256 connections are served at a time, further ones wait. PortError when
        `host_port` is in use.
        """
        address = _checked_target(target)
        check.port("host_port", host_port, minimum=0)
        self._session.raise_if_unusable()
        listener = _listener(host_port)
        server = ForwardServer(self._session.relay, listener, address)
        try:
            port: int = listener.getsockname()[1]
            server.start()
            return Forward(server, target, port)
        except BaseException:
            if not server.abandon():
                close_socket(listener, abruptly=False)
            raise

    def expose(self, host_port: int, as_port: int | None = None, host: str = _LOCAL) -> Exposed:
        """Let the sandbox reach one service of the host, and no other, on its own 127.0.0.1:`as_port`.

        `as_port` None is the same number as `host_port`. `host` is an address or a name, resolved once, now. The
        service need not run yet. PortError when `as_port` is in use in the sandbox, or not for the session's user.
        """
        check.port("host_port", host_port)
        check.port("as_port", as_port, optional=True)
        check.text("host", host, accepted="a host's address or name, not empty, without NUL")
        self._session.raise_if_unusable()
        family, address = _resolved(host, host_port)
        wanted = host_port if as_port is None else as_port
        exposer = ServiceExposer(self._session.relay, family, address)
        try:
            port = exposer.start(wanted, _PATIENCE)
            if isinstance(port, Refusal):
                raise _not_listening(port, wanted)
            return Exposed(exposer, port, host, host_port)
        except BaseException:
            exposer.abandon()
            raise


def _not_listening(refusal: Refusal, port: int) -> PortError:
    details: dict[str, object] = {"port": port, "errno": refusal.errno}
    if refusal.errno == errno.EADDRINUSE:
        message = f"as_port {port} is in use in the sandbox. Name another one, or end what listens there."
    elif refusal.errno == errno.EACCES:
        message = f"as_port {port} needs a privilege that the session's user has not. Name one of 1024 or more."
    else:
        message = f"The sandbox can't listen on as_port {port}: {refusal.message}"
    return PortError(message, details=details)


def _checked_target(target: Target) -> Target:
    if isinstance(target, str):
        text = check.text("target", target, accepted=_TARGETS)
        if text[0] not in "/@" or not 2 <= len(text.encode("utf-8", "surrogateescape")) <= 107:
            check.fail("target", target, _TARGETS)
        if text == "@sandboxkit-agent":
            check.fail("target", target, "any socket but the agent's own")
        return text
    if isinstance(target, bool) or not isinstance(target, int) or not 1 <= target <= 65535:
        check.fail("target", target, _TARGETS)
    return target


def _listener(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((_LOCAL, port))
        sock.listen(512)
        return sock
    except OSError as error:
        sock.close()
        details: dict[str, object] = {"port": port, "errno": error.errno or 0}
        if error.errno == errno.EADDRINUSE:
            message = f"host_port {port} is in use on this host. Name another one, or 0 for any."
        elif error.errno == errno.EACCES:
            message = f"host_port {port} needs a privilege. Name one of 1024 or more, or 0 for any."
        else:
            message = f"host_port {port} can't be listened on: {error}"
        raise PortError(message, details=details) from error
    except BaseException:
        sock.close()
        raise


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        check.fail("host", host, "the address, or a name that resolves, of a host")
    return family, (str(address[0]), port)
