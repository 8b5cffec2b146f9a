"""The commands. What they print is for people on a terminal, and lines with tabs elsewhere."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import click

from sandboxkit import _registry, sessions
from sandboxkit.config import Limits, Network, Workspace
from sandboxkit.errors import ConfigError, SandboxError
from sandboxkit.results import StderrEvent, StdoutEvent
from sandboxkit.sandbox import Sandbox
from sandboxkit.version import __version__

P = ParamSpec("P")
T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

TIMED_OUT = 124  # as timeout(1) has it


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sandboxkit")
def cli() -> None:
    """Disposable, locked-down workspaces in containers."""


def engine_options(command: Command) -> Command:
    """Which engine: for every command."""
    command = click.option("--url", help="The engine's address.")(command)
    return click.option("--backend", default="auto", show_default=True, help="docker, podman, bubblewrap, ...")(command)


def sandbox_options(command: Command) -> Command:
    """What a new session may use."""
    for option in reversed(
        (
            click.option("--workspace", type=click.Path(exists=True, file_okay=False), help="A folder to work in."),
            click.option("--read-only", is_flag=True, help="The folder can't be changed."),
            click.option("--network", type=click.Choice(["none", "bridge"]), default="none", show_default=True),
            click.option("--allow-host", multiple=True, metavar="NAME", help="The way out to this host alone."),
            click.option("--memory-mb", type=int, default=2048, show_default=True),
            click.option("--env", "settings", multiple=True, metavar="NAME=VALUE", help="For every command."),
            click.option("--allow-unenforced", is_flag=True, help="Go on where the engine can't enforce a limit."),
        )
    ):
        command = option(command)
    return command


def reports_errors(command: Callable[P, T]) -> Callable[P, T]:
    """What sandboxkit raises is one line on standard error and exit code 1."""

    @wraps(command)
    def reporting(*args: P.args, **options: P.kwargs) -> T:
        try:
            return command(*args, **options)
        except SandboxError as error:
            sys.exit(f"sandboxkit: {_plain(str(error))}")
        except KeyboardInterrupt:  # what ran is dead, and its session gone
            sys.exit(128 + signal.SIGINT)

    return reporting


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("image")
@click.argument("command")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@engine_options
@sandbox_options
@click.option("--timeout", type=float, help="Seconds; without it the command runs as long as it likes.")
@click.option("-i", "--stdin", "interactive", is_flag=True, help="Give the command this standard input.")
@reports_errors
def run(
    image: str,
    command: str,
    args: tuple[str, ...],
    *,
    backend: str,
    url: str | None,
    timeout: float | None,
    interactive: bool,
    **options: Any,
) -> None:
    """Run COMMAND with ARGS in a new session of IMAGE, which ends with it.

    Its output comes as it is written, and its exit code is this command's (124 at a timeout, 127 if it is not found).
    """
    command, *rest = [word for index, word in enumerate((command, *args)) if (index, word) != (0, "--")]
    sandbox = _sandbox(image, backend, url, timeout=timeout, **options)
    source = sys.stdin.buffer if interactive else None
    with sandbox.create_session() as session, session.exec_stream(command, rest, input=source) as stream:
        for event in stream:
            if isinstance(event, (StdoutEvent, StderrEvent)):
                target = sys.stdout if isinstance(event, StdoutEvent) else sys.stderr
                target.buffer.write(event.data)
                target.flush()
        result = stream.wait()
    sys.exit(TIMED_OUT if result.exit_code is None else result.exit_code)


@cli.command()
@click.option("--image", required=True, help="Of the session; 'host' with --backend bubblewrap: this host's programs.")
@engine_options
@sandbox_options
@click.option("--include", multiple=True, help="A tool, or several with commas. Without it the four common ones.")
@click.option("--allow-command", multiple=True, help="The model may run this program; without it any.")
@click.option("--block-command", multiple=True, help="The model may not run this program.")
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Of a command that asks for none.")
@click.option("--max-timeout", type=float, default=600.0, show_default=True, help="Of any command.")
@reports_errors
def mcp(
    *,
    image: str,
    backend: str,
    url: str | None,
    include: tuple[str, ...],
    allow_command: tuple[str, ...],
    block_command: tuple[str, ...],
    timeout: float,
    max_timeout: float,
    **options: Any,
) -> None:
    """Serve a session's tools to an MCP client over standard input and output; the session ends with the client."""
    from sandboxkit.tools import ExecPolicy, create_sandbox_tools
    from sandboxkit.tools._create import DEFAULT
    from sandboxkit.tools._extras import need
    from sandboxkit.tools._serve import Wire, serve_stdio

    need("this command", "sandboxkit[mcp]", "jsonschema", "mcp")  # before anything is made
    policy = ExecPolicy(
        allowed_commands=allow_command or None,
        blocked_commands=block_command,
        default_timeout=timeout,
        max_timeout=max_timeout,
    )
    tools = [name.strip() for part in include for name in part.split(",")] or DEFAULT
    sandbox = _sandbox(image, backend, url, timeout=max_timeout, **options)
    wire = Wire()
    with sandbox.create_session() as session:
        number = serve_stdio(session, create_sandbox_tools(session, tools, exec=policy), wire)
    if number:
        sys.exit(128 + number)


@cli.command()
@engine_options
@reports_errors
def ls(backend: str, url: str | None) -> None:
    """List the sessions on the engine."""
    rows = [
        (
            session.id,
            session.backend,
            "running" if session.running else "stopped",
            ", ".join(word for word, true in (("detached", session.detached), ("kept", session.kept)) if true),
            _time(session.created),
            _time(session.expires),
        )
        for session in sessions.list_sessions(backend=backend, url=url)
    ]
    _table(("SESSION", "BACKEND", "STATE", "", "CREATED", "EXPIRES"), rows)


@cli.command()
@engine_options
@click.option("--dry-run", is_flag=True, help="Remove nothing, tell what would be.")
@click.option("--older-than", type=float, metavar="SECONDS", help="Only what was made longer ago.")
@click.option("--agents", is_flag=True, help="Also volumes of other versions of sandboxkit.")
@reports_errors
def prune(backend: str, url: str | None, *, dry_run: bool, older_than: float | None, agents: bool) -> None:
    """Remove what dead processes left and what has expired; nothing that a live process owns."""
    done = sessions.prune(backend=backend, url=url, dry_run=dry_run, older_than=older_than, agents=agents)
    _table(("KIND", "NAME", "WOULD BE REMOVED" if dry_run else "REMOVED"), [(p.kind, p.name, p.reason) for p in done])


@cli.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@engine_options
@reports_errors
def rm(ids: tuple[str, ...], backend: str, url: str | None) -> None:
    """Destroy sessions, whoever made them."""
    for id in ids:
        sessions.remove_session(id, backend=backend, url=url)


@cli.command()
@reports_errors
def engines() -> None:
    """Tell which backends answer, and what they are."""
    rows, notes = [], []
    for name in _registry.available():
        try:
            info = _registry.connect(name).info()
        except SandboxError as error:
            rows.append((name, "", "", "", str(error).partition("\n")[0]))
            continue
        kind = "rootless" if info.rootless else "root"
        rows.append((name, info.version, kind, ", ".join(sorted(info.enforceable)) or "none", info.url))
        notes += [f"{name}: {note}" for note in info.notes]
    _table(("BACKEND", "VERSION", "RUNS AS", "ENFORCES", "ADDRESS"), rows)
    for note in notes:
        click.echo(_plain(note), err=True)


def _sandbox(
    image: str,
    backend: str,
    url: str | None,
    *,
    timeout: float | None,
    workspace: str | None,
    read_only: bool,
    network: str,
    allow_host: Sequence[str],
    memory_mb: int,
    settings: Sequence[str],
    allow_unenforced: bool,
) -> Sandbox:
    env = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--env is {setting!r}; accepted: NAME=VALUE")
        env[name] = value
    if read_only and workspace is None:
        raise ConfigError("--read-only needs --workspace: what else would there be to read?")
    if allow_host and network == "bridge":
        raise ConfigError("--allow-host and --network bridge exclude each other: the one is for no other network.")
    way_out = Network.allow(allow_host) if allow_host else Network.none()
    return Sandbox(
        image,
        backend,
        url,
        limits=Limits(timeout=timeout, memory_mb=memory_mb, allow_unenforced=allow_unenforced),
        network=Network.bridge() if network == "bridge" else way_out,
        workspace=None if workspace is None else Workspace.bind(workspace, read_only=read_only),
        env=env,
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        for row in rows:
            click.echo("\t".join(map(_plain, row)))
        return
    table = Table(*heads, box=None, header_style="dim")
    for row in rows:
        table.add_row(*(Text(_plain(cell)) for cell in row))
    console.print(table)


def _plain(text: str) -> str:
    # Names and messages hold what engines and images say.
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
