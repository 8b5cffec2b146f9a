"""What images made of sessions' containers have in common on all engines."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

from sandboxkit._labels import PREFIX

from .backend import helper_labels

__all__ = ["CHUNK", "clearing_archive", "config_changes"]

CHUNK = 256 * 1024


def config_changes(container: Mapping[str, Any], original: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    """Dockerfile instructions that give the image the configuration of the one its container was made from.

    What the session set goes: the agent as its program, labels, and the values of its environment, which may be
    secrets. The engines can't take a variable away, so those that are not the original image's stay, empty.
    """
    changes = [
        f"ENTRYPOINT {json.dumps(_words(original.get('Entrypoint')))}",
        f"CMD {json.dumps(_words(original.get('Cmd')))}",
        f"WORKDIR {original.get('WorkingDir') or '/'}",
        f"USER {original.get('User') or '0'}",
    ]
    before = dict(entry.partition("=")[::2] for entry in original.get("Env") or ())
    for entry in container.get("Env") or ():
        name = str(entry).partition("=")[0]
        changes.append(f"ENV {name}={json.dumps(before.get(name, ''))}")
    gone = {name: "" for name in (*(container.get("Labels") or ()), *helper_labels()) if name.startswith(PREFIX)}
    changes += [f"LABEL {json.dumps(name)}={json.dumps(value)}" for name, value in {**gone, **labels}.items()]
    return changes


def clearing_archive(folder: str) -> bytes:
    """Unpacked at `/`, it puts a file in the place of a folder, so that all in it is gone, then an empty folder again.

    There is no call that removes files.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(folder.strip("/"))
        archive.addfile(entry)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(entry)
        end = archive.offset
    return buffer.getvalue()[: end + 2 * tarfile.BLOCKSIZE]  # no padding: see archives.py


def _words(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())
