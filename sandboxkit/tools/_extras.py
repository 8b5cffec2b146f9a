"""What is used only where it is installed."""

from __future__ import annotations

import importlib.util

from sandboxkit.errors import ConfigError

__all__ = ["need"]


def need(what: str, extra: str, *modules: str) -> None:
    """ConfigError, which names what to install, unless each of the modules is there. Imports none of them."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"{what} needs the package {name.replace('_', '-')}: pip install '{extra}'", details={"field": extra}
            )
