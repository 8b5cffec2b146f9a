"""Who runs the sandboxes on the host: the caller, or, when that is root, a user that nobody else is."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import attrs

__all__ = ["SETUP_CAPABILITIES", "Mapping", "is_privileged", "mapping_for", "mapping_in"]

SETUP_CAPABILITIES = ("CAP_CHOWN", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID")
"""In the sandbox's own user namespace: what the agent needs to become another user, and gives up with it."""

# Ids that no distribution gives out (systemd's "Users, Groups, UIDs and GIDs": 1879048192 to 2147483647 are unused), so
# that such a sandbox owns no file and no process of the host, and no other sandbox's.
_FIRST_UNUSED = 0x70000000
_UNUSED = 0x0FFFFFFF
_SETUP_ID = 65533  # inside, for root of the host, where 0 is what commands run as


@attrs.frozen
class Mapping:
    """A user namespace of a sandbox that root makes: `user` inside is `host` outside; root is there to set it up."""

    user: int
    host: int

    @property
    def lines(self) -> str:
        """As /proc/PID/uid_map and gid_map take it."""
        setup = 0 if self.user != 0 else _SETUP_ID
        return f"{setup} 0 1\n{self.user} {self.host} 1\n"


def mapping_for(kind: Literal["uid", "gid"], user: int, session: str) -> Mapping:
    """The same for the same session; for two sessions the same only by a rare chance, which harms nobody."""
    return mapping_in(id_ranges(kind), user, session)


def mapping_in(known: Sequence[tuple[int, int]], user: int, session: str) -> Mapping:
    """`known`: the ids that this process's own user namespace has, as (first, count)."""
    place = zlib.crc32(session.encode())
    wanted = _FIRST_UNUSED + place % _UNUSED
    if any(first <= wanted < first + count for first, count in known):
        return Mapping(user, wanted)
    # In a user namespace already (a rootless container's root): the upper half of the largest range it has.
    first, count = max(known, key=lambda found: found[1])
    half = max(count // 2, 1)
    return Mapping(user, first + count - 1 - place % half)


def is_privileged() -> bool:
    """Whether this process may make sandboxes that run as another user of the host."""
    return (
        os.geteuid() == 0
        and _may_map()
        and all(any(first + count > 1 for first, count in id_ranges(kind)) for kind in ("uid", "gid"))
    )


def _may_map() -> bool:
    for line in Path("/proc/self/status").read_text("utf-8", "replace").splitlines():
        if line.startswith("CapEff:"):
            wanted = 1 << 6 | 1 << 7 | 1 << 21  # CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN
            return int(line.split()[1], 16) & wanted == wanted
    return False


def id_ranges(kind: str) -> list[tuple[int, int]]:
    """The ids of this process's own user namespace, as (first, count)."""
    # "inside outside count", a line a range; user_namespaces(7).
    lines = Path(f"/proc/self/{kind}_map").read_text("utf-8").splitlines()
    return [(int(first), int(count)) for first, _, count in (line.split() for line in lines)]
