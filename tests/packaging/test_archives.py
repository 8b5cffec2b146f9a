"""The exact contents of the wheel and the sdist."""

from __future__ import annotations

import ast
import email
import email.message
import hashlib
import json
import re
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, run_python

pytestmark = pytest.mark.packaging

AGENTS = "sandboxkit/_agents"
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
PT_DYNAMIC, PT_INTERP = 2, 3
LARGEST_AGENT = 150_000


def modules(folder: str, *, relative_to: str = ".") -> set[str]:
    return {path.relative_to(ROOT / relative_to).as_posix() for path in (ROOT / folder).rglob("*.py")}


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel: Path) -> email.message.Message:
    return email.message_from_bytes(members(wheel)["sandboxkit-0.1.0.dist-info/METADATA"])


def test_the_wheel_is_for_every_platform(wheel: Path) -> None:
    assert wheel.name == "sandboxkit-0.1.0-py3-none-any.whl"


def test_the_wheel_has_the_modules_and_the_agents_and_nothing_else(wheel: Path) -> None:
    agents = {f"{AGENTS}/{name}" for name in ("agent-x86_64", "agent-aarch64", "manifest.json")}
    names = {name for name in members(wheel) if not name.startswith("sandboxkit-0.1.0.dist-info/")}
    assert names == modules("sandboxkit") | modules("backends", relative_to="backends") | agents | {
        "sandboxkit/py.typed"
    }


def test_the_sdist_has_the_sources_of_both_languages(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        paths = [name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()]
    c_sources = {f"agent/{path.name}" for path in (ROOT / "agent").glob("*.[ch]")}
    assert any(name.endswith(".c") for name in c_sources)
    project = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.cfg"}
    build = {"agent/CFLAGS", "agent/PROTOCOL.md", "agent/build_agent.py"}
    generated = {"PKG-INFO"}
    expected = modules("sandboxkit") | modules("backends") | c_sources | project | build | generated
    assert {path for path in paths if ".egg-info/" not in path} == expected | {"sandboxkit/py.typed"}


@pytest.mark.parametrize("cpu", ELF_MACHINES)
def test_an_agent_is_a_small_static_executable_for_its_cpu(wheel: Path, cpu: str) -> None:
    binary = members(wheel)[f"{AGENTS}/agent-{cpu}"]
    assert len(binary) <= LARGEST_AGENT
    assert binary[:6] == b"\x7fELF\x02\x01"  # 64 bits, little-endian
    assert struct.unpack_from("<H", binary, 18)[0] == ELF_MACHINES[cpu]
    (table,) = struct.unpack_from("<Q", binary, 32)
    entry_size, entries = struct.unpack_from("<HH", binary, 54)
    segments = {struct.unpack_from("<I", binary, table + entry_size * entry)[0] for entry in range(entries)}
    assert segments.isdisjoint({PT_DYNAMIC, PT_INTERP})
    with zipfile.ZipFile(wheel) as archive:
        assert archive.getinfo(f"{AGENTS}/agent-{cpu}").external_attr >> 16 & 0o111 == 0o111


@pytest.mark.parametrize("cpu", ELF_MACHINES)
def test_the_manifest_describes_the_agents(wheel: Path, cpu: str) -> None:
    manifest = json.loads(members(wheel)[f"{AGENTS}/manifest.json"])
    binary = members(wheel)[f"{AGENTS}/agent-{cpu}"]
    assert manifest.keys() == {"build", *ELF_MACHINES}
    assert manifest[cpu] == {"sha256": hashlib.sha256(binary).hexdigest(), "size": len(binary)}
    assert manifest["build"].encode() in binary


def test_every_way_to_build_gives_the_same_agents(wheel: Path, second_wheel: Path) -> None:
    run_python("agent/build_agent.py", cwd=ROOT)
    first, second = members(wheel), members(second_wheel)
    for name in ("agent-x86_64", "agent-aarch64", "manifest.json"):
        path = f"{AGENTS}/{name}"
        assert first[path] == second[path] == (ROOT / path).read_bytes()


def test_a_wheel_built_twice_holds_nothing_of_an_older_build(wheel: Path, second_wheel: Path) -> None:
    assert members(second_wheel).keys() == members(wheel).keys()


def test_metadata(wheel: Path) -> None:
    found = metadata(wheel)
    assert (found["Name"], found["Version"], found["Requires-Python"]) == ("sandboxkit", "0.1.0", ">=3.10")
    assert found["License-Expression"] == "MIT"
    extras = [
        "docker",
        "podman",
        "bubblewrap",
        "tools",
        "cli",
        "mcp",
        "jupyter",
        "otel",
        "egress",
        "all",
        "test",
        "dev",
    ]
    assert found.get_all("Provides-Extra") == extras


def test_requirements(wheel: Path) -> None:
    found = metadata(wheel).get_all("Requires-Dist") or []
    assert [line for line in found if "extra ==" not in line] == ["attrs>=22.2", "typing-extensions>=4.6"]
    assert [line for line in found if line.endswith(('"docker"', '"podman"', '"test"', '"all"'))] == [
        'docker>=7.1; extra == "docker"',
        'podman>=5.2; extra == "podman"',
        'sandboxkit[bubblewrap,cli,docker,egress,jupyter,mcp,otel,podman,tools]; extra == "all"',
        'pytest>=8.3; extra == "test"',
        'hypothesis>=6.100; extra == "test"',
        'sandboxkit[egress,tools]; extra == "test"',
    ]


def test_developers_have_what_builds_need(wheel: Path) -> None:
    line = re.search(r"^requires = (\[.*?\])", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert line is not None
    needed = {f'{requirement}; extra == "dev"' for requirement in ast.literal_eval(line[1])}
    assert needed <= set(metadata(wheel).get_all("Requires-Dist") or [])
