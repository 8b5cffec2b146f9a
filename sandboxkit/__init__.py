"""A disposable, locked-down workspace in a container, and commands in it: synchronous, fast, on Docker and Podman.

>>> from sandboxkit import Sandbox
>>> with Sandbox("python:3.12-slim").create_session() as session:  # doctest: +SKIP
...     session.exec("python", ["-c", "print(6 * 7)"]).stdout
'42\\n'
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .version import __version__

# What a name needs is loaded when it is first used: whoever imports the package for one function, or not even that,
# does not pay for all. A test holds the two lists to each other.
if TYPE_CHECKING:
    from .abort import AbortSignal
    from .backend import EngineInfo, Progress
    from .config import Lifecycle, Limits, Network, Pull, Security, Workspace
    from .egress.events import EgressEvent
    from .errors import (
        CommandFailedError,
        ConfigError,
        EngineError,
        EngineUnavailableError,
        ErrorCode,
        FileError,
        FileTooLargeError,
        ImageNotFoundError,
        LimitsNotEnforceableError,
        PathError,
        PolicyError,
        PortError,
        ProcessError,
        ProcessTimeoutError,
        SandboxError,
        SessionBusyError,
        SessionDestroyedError,
        SessionLostError,
        SessionNotFoundError,
        UnsupportedError,
    )
    from .exec_stream import ExecStream
    from .file_results import FileEntry, FileListing, FileProgress, SearchMatch, SearchResult, TextPage, Transfer
    from .files import SessionFiles
    from .hooks import ExecEnded, ExecStarted, FileWritten, Hooks, SessionCreated, SessionEnded
    from .pool import Pool
    from .port_results import ListeningPort, PublishedPort
    from .ports import Exposed, Forward, SessionPorts
    from .process_results import ProcessExit, ProcessLogs
    from .process_stream import ProcessStream
    from .processes import ManagedProcess, SessionProcesses
    from .results import Event, ExecResult, ExitEvent, Program, StderrEvent, StdoutEvent
    from .sandbox import DockerSandbox, PodmanSandbox, Sandbox
    from .session import Session, SessionState
    from .sessions import Owner, Pruned, SessionInfo, attach, list_sessions, prune, remove_session
    from .snapshots import Snapshot, list_snapshots, remove_snapshot

_HOMES: Mapping[str, str] = {
    "abort": "AbortSignal",
    "backend": "EngineInfo Progress",
    "config": "Lifecycle Limits Network Pull Security Workspace",
    "egress.events": "EgressEvent",
    "errors": (
        "CommandFailedError ConfigError EngineError EngineUnavailableError ErrorCode FileError "
        "FileTooLargeError ImageNotFoundError LimitsNotEnforceableError PathError PolicyError PortError "
        "ProcessError ProcessTimeoutError SandboxError SessionBusyError SessionDestroyedError "
        "SessionLostError SessionNotFoundError UnsupportedError"
    ),
    "exec_stream": "ExecStream",
    "file_results": "FileEntry FileListing FileProgress SearchMatch SearchResult TextPage Transfer",
    "files": "SessionFiles",
    "hooks": "ExecEnded ExecStarted FileWritten Hooks SessionCreated SessionEnded",
    "pool": "Pool",
    "port_results": "ListeningPort PublishedPort",
    "ports": "Exposed Forward SessionPorts",
    "process_results": "ProcessExit ProcessLogs",
    "process_stream": "ProcessStream",
    "processes": "ManagedProcess SessionProcesses",
    "results": "Event ExecResult ExitEvent Program StderrEvent StdoutEvent",
    "sandbox": "DockerSandbox PodmanSandbox Sandbox",
    "session": "Session SessionState",
    "sessions": "Owner Pruned SessionInfo attach list_sessions prune remove_session",
    "snapshots": "Snapshot list_snapshots remove_snapshot",
}
_FOUND_IN = {name: module for module, names in _HOMES.items() for name in names.split()}
_MODULES = frozenset({"backend", "config", "conformance", "errors", "tools"})

__all__ = [
    "AbortSignal",
    "CommandFailedError",
    "ConfigError",
    "DockerSandbox",
    "EgressEvent",
    "EngineError",
    "EngineInfo",
    "EngineUnavailableError",
    "ErrorCode",
    "Event",
    "ExecEnded",
    "ExecResult",
    "ExecStarted",
    "ExecStream",
    "ExitEvent",
    "Exposed",
    "FileEntry",
    "FileError",
    "FileListing",
    "FileProgress",
    "FileTooLargeError",
    "FileWritten",
    "Forward",
    "Hooks",
    "ImageNotFoundError",
    "Lifecycle",
    "Limits",
    "LimitsNotEnforceableError",
    "ListeningPort",
    "ManagedProcess",
    "Network",
    "Owner",
    "PathError",
    "PodmanSandbox",
    "PolicyError",
    "Pool",
    "PortError",
    "ProcessError",
    "ProcessExit",
    "ProcessLogs",
    "ProcessStream",
    "ProcessTimeoutError",
    "Program",
    "Progress",
    "Pruned",
    "PublishedPort",
    "Pull",
    "Sandbox",
    "SandboxError",
    "SearchMatch",
    "SearchResult",
    "Security",
    "Session",
    "SessionBusyError",
    "SessionCreated",
    "SessionDestroyedError",
    "SessionEnded",
    "SessionFiles",
    "SessionInfo",
    "SessionLostError",
    "SessionNotFoundError",
    "SessionPorts",
    "SessionProcesses",
    "SessionState",
    "Snapshot",
    "StderrEvent",
    "StdoutEvent",
    "TextPage",
    "Transfer",
    "UnsupportedError",
    "Workspace",
    "__version__",
    "attach",
    "list_sessions",
    "list_snapshots",
    "prune",
    "remove_session",
    "remove_snapshot",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    home = _FOUND_IN.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
