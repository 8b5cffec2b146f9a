"""A disposable, locked-down workspace in a container, and commands in it: synchronous, fast, on Docker and Podman.

>>> from sandboxkit import Sandbox
>>> with Sandbox("python:3.12-slim").create_session() as session:  # doctest: +SKIP
...     session.exec("python", ["-c", "print(6 * 7)"]).stdout
'42\\n'
"""

from __future__ import annotations

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
from .version import __version__

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
