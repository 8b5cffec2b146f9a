"""A descriptor that Ctrl-C can't lose."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["Descriptor"]


class Descriptor:
    """What an opening function of `os` returns; it is closed by `close`, or with whoever held it last."""

    def __init__(self, opener: Callable[..., int], *arguments: object) -> None:
        self._held: list[int] = []
        # `map` calls and `extend` keeps with no bytecode between, where Ctrl-C could lose the descriptor.
        self._held.extend(map(opener, *((argument,) for argument in arguments)))

    @property
    def closed(self) -> bool:
        """Whether it was given back."""
        return not self._held

    def fileno(self) -> int:
        """The number; IndexError once it is closed."""
        return self._held[0]

    def close(self) -> None:
        """Idempotent."""
        while self._held:
            os.close(self._held.pop())

    __del__ = close
