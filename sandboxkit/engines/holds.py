"""What only one of several processes may do to a container: the engine's names are the lock."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator

from sandboxkit._labels import Owner
from sandboxkit.errors import EngineError, SandboxError, SessionBusyError, SessionNotFoundError

from .api import EngineApi
from .backend import helper_labels

__all__ = ["held"]

_CALL = "sandboxkit.hold"
_PATIENCE = 10.0
_PAUSE = 0.02


@contextlib.contextmanager
def held(api: EngineApi, container: str) -> Iterator[None]:
    """Nobody else has it for the length of the block: SessionBusyError when somebody has.

    A container of one certain name, never started, stands for it: an engine gives a name once, to whomever asks first,
    from whatever host. One whose maker is dead counts for nothing.
    """
    found = api.inspect(container)
    if found is None:
        raise SessionNotFoundError(f"{api.engine} has no container {container}", details={"container": container})
    name, call = f"{found.name}-held", secrets.token_hex(8)
    try:
        _take(api, name, found.image, call)
        yield
    finally:
        with contextlib.suppress(SandboxError):
            # Ours alone: the call may have been cut short before or after the engine had made it.
            made = api.inspect(name)
            if made is not None and made.labels.get(_CALL) == call:
                api.delete(made.id)


def _take(api: EngineApi, name: str, image: str, call: str) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            api.create_helper(name, image, {**helper_labels(), _CALL: call}, None, "/")
            return
        except EngineError:
            # An engine gives a name away before it can tell who has it.
            holder = api.inspect(name)
            if holder is None and time.monotonic() > end:
                raise
        if holder is None:
            threading.Event().wait(_PAUSE)
            continue
        owner = Owner.of(holder.labels)
        if owner is None or owner.is_alive is not False:
            raise SessionBusyError(
                "Another process is resuming this session at this moment. Try again, or leave it to that one. "
                f"(If there is none on any host, remove the container {name}.)",
                details={"container": holder.id},
            )
        api.delete(holder.id)
