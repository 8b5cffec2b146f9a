"""The import contracts: who may know whom (docs/architecture.md), read from the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ROOT / "sandboxkit"
BACKENDS = ROOT / "backends"

# What the author of a backend works with: these modules know nothing of sessions, and a backend knows only them.
BACKEND_API = ("backend", "backend_parts", "config", "engines", "errors", "streams")
# From the bottom up: a module imports from its own layer and those below. One that is not named is at the top.
LAYERS = (
    (*BACKEND_API, "_addresses", "_binds", "_hosts", "_labels", "_network", "_settings", "_validate"),
    (
        *("_latch", "_frames", "_process_frames", "_shortcut", "_decoder", "_lane", "_channel"),
        *("_tunnels", "_relay", "_resolver", "_pump", "_bridge", "_forwards", "egress"),
    ),
    (
        "abort",
        "results",
        "exec_stream",
        "session",
        "_snapshot",
        "_way_out",
        "_input",
        "_output",
        "_run",
        "_session",
        "files",
        "ports",
        "file_results",
        "_applets",
        "_programs",
        "_records",
        "port_results",
        "_port_watch",
        "_http_probe",
        "_file_calls",
        "_glob",
        "_process_calls",
        "process_results",
        "process_stream",
        "processes",
        "_progress",
        "_transfer",
        "_upload",
        "_download",
    ),
)
# Module of the core → what it may import besides the standard library and the dependencies.
OPTIONAL = {
    "cli": {"click", "rich"},
    "tools": {"anyio", "jsonschema", "langchain_core", "mcp"},
    "otel": {"opentelemetry"},
    "egress": {"h11"},
    "_way_out": {"h11"},
    "_progress": {"rich"},
    "conformance": {"pytest", "hypothesis"},
}
DEPENDENCIES = {"attrs", "typing_extensions"}
ENGINE_SDKS = {"docker", "podman", "requests", "urllib3"}
# A thread has one owner who ends it; nothing above the channel starts one. The suite's own tests do, as users would.
MAY_START_THREADS = {
    "sandboxkit._channel",
    "sandboxkit._relay",
    "sandboxkit._resolver",
    "sandboxkit.pool",
    "sandboxkit.conformance._threads",
}
THREAD_STARTERS = {
    *("threading.Thread", "threading.Timer", "_thread.start_new_thread", "asyncio.to_thread"),
    *("concurrent.futures.ThreadPoolExecutor", "multiprocessing.pool.ThreadPool"),
}
LONGEST_FILE = 500


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def module_name(path: Path) -> str:
    parts = path.relative_to(BACKENDS if path.is_relative_to(BACKENDS) else ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Each import as an absolute dotted name: lazy ones and those for type checkers too.

    ``from a.b import c`` yields ``a.b.c``, which names ``a.b`` where ``c`` is no module.
    """
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def core_module(name: str) -> str:
    """``sandboxkit.backend.Backend`` → ``backend``; the package itself → the empty string."""
    _, _, rest = name.partition(".")
    first = rest.partition(".")[0]
    return first if (CORE / f"{first}.py").is_file() or (CORE / first).is_dir() else ""


def is_core(name: str) -> bool:
    return name.partition(".")[0] == "sandboxkit"


def layer(module: str) -> int:
    return next((height for height, names in enumerate(LAYERS) if module in names), len(LAYERS))


def each(*folders: str) -> pytest.MarkDecorator:
    files = python_files(*folders)
    return pytest.mark.parametrize("path", files, ids=[path.relative_to(ROOT).as_posix() for path in files])


def test_importing_the_core_loads_no_engine_sdk() -> None:
    program = "import sandboxkit, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    forbidden = {*ENGINE_SDKS, "asyncio", "sandboxkit_docker", "sandboxkit_podman"}
    assert forbidden.isdisjoint(loaded.stdout.split())


@each("sandboxkit")
def test_the_core_imports_its_dependencies_alone(path: Path) -> None:
    allowed = (
        sys.stdlib_module_names | DEPENDENCIES | {"sandboxkit"} | OPTIONAL.get(core_module(module_name(path)), set())
    )
    assert {name.partition(".")[0] for name in imports(path)} - allowed == set()


@each("sandboxkit")
def test_a_module_of_the_core_knows_only_its_layer_and_those_below(path: Path) -> None:
    own = core_module(module_name(path))
    known = {core_module(name) for name in imports(path) if is_core(name)}
    assert {module for module in known if layer(module) > layer(own)} == set()


@each("sandboxkit/tools")
def test_the_tools_work_with_whatever_is_a_session(path: Path) -> None:
    """Of the core they know the public modules, and helpers that know no session either."""
    known = {core_module(name) for name in imports(path) if is_core(name)}
    assert {module for module in known if module.startswith("_")} <= {"_glob", "_output", "_validate"}


@each("backends")
def test_a_backend_knows_only_the_backend_api(path: Path) -> None:
    own = module_name(path).partition(".")[0]
    names = set(imports(path))
    assert {core_module(name) for name in names if is_core(name)} <= set(BACKEND_API)
    others = {name for name in names if name.startswith("sandboxkit_") and name.partition(".")[0] != own}
    assert others == set(), "what two backends share goes down into sandboxkit, never sideways"


@each("sandboxkit", "backends")
def test_only_the_channel_starts_threads(path: Path) -> None:
    tree = ast.parse(path.read_text())
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    starts = (attributes | set(imports(path))) & THREAD_STARTERS
    assert not starts or module_name(path) in MAY_START_THREADS


@each("sandboxkit", "backends", "examples", "tools")
def test_there_is_no_event_loop(path: Path) -> None:
    assert "asyncio" not in {name.partition(".")[0] for name in imports(path)}


@each("sandboxkit", "backends", "agent", "tests", "tools", "benchmarks", "examples")
def test_the_oldest_supported_python_can_parse_it(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 10))


def test_no_source_file_is_too_long() -> None:
    sources = python_files("sandboxkit", "backends", "agent", "tests", "tools", "benchmarks", "examples")
    sources += sorted((ROOT / "agent").rglob("*.[ch]"))
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}
