"""The agent binaries that this installation carries (put there by the package build)."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from .backend import AgentBundle
from .errors import EngineError

__all__ = ["bundle"]

_FOLDER = Path(__file__).parent / "_agents"


@functools.lru_cache(maxsize=1)
def bundle() -> AgentBundle:
    """EngineError when the package was put on the path without being built."""
    try:
        manifest = json.loads((_FOLDER / "manifest.json").read_text("utf-8"))
        paths = {arch: _FOLDER / f"agent-{arch}" for arch in ("x86_64", "aarch64") if arch in manifest}
        return AgentBundle(build=manifest["build"], paths=paths)
    except (OSError, ValueError, KeyError) as error:
        raise EngineError(
            f"sandboxkit's agent is missing from {_FOLDER} ({error}). Install the package (`pip install .` or "
            "`pip install -e .`) instead of putting its folder on the path."
        ) from error
