"""Who is compared, on which engines, in which environment."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from .base import Competitor, Engine

PYTHON_IMAGE = "sandboxkit-test/python"


@dataclass(frozen=True)
class Entry:
    """One competitor.

    - `engines`: names of the engines it runs on. `source`: module and class.
    - `requirements`: whether it has a file of pinned packages, and so an environment of its own.
    - `image`: the one it needs if it is not the common one. `note`: what a reader of its figures should know.
    """

    name: str
    engines: tuple[str, ...]
    source: str
    requirements: bool = False
    image: str = PYTHON_IMAGE
    note: str = ""

    def load(self, engine: Engine) -> Competitor[Any]:
        """An instance, in the environment that this process runs in."""
        module, _, name = self.source.partition(":")
        kind: type[Competitor[Any]] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        return kind(engine, self.image)


OURS = "sandboxkit"
FLOOR = "subprocess.run"
DOCKER = ("docker",)
PODMAN = ("podman", "podman-rootless")

ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(OURS, (*DOCKER, *PODMAN, "host"), "ours:Sandboxkit"),
        Entry(FLOOR, (*DOCKER, *PODMAN, "host"), "local:LocalSubprocess", note="on this host, without any sandbox"),
        Entry("docker-py", DOCKER, "docker_py:DockerPy", requirements=True),
        Entry("docker CLI", DOCKER, "cli:EngineCli"),
        Entry("podman-py", PODMAN, "podman_py:PodmanPy", requirements=True),
        Entry("podman CLI", PODMAN, "cli:EngineCli"),
        Entry("bwrap", ("host",), "local:BubblewrapByHand", note="a sandbox made for each command"),
        Entry("llm-sandbox", DOCKER, "llm_sandbox:LlmSandbox", requirements=True),
        Entry(
            "swe-rex",
            DOCKER,
            "swe_rex:SweRex",
            requirements=True,
            image="sandboxkit-bench/swe-rex",
            note="its server is in the image; the network is on",
        ),
        Entry("openai-agents", DOCKER, "openai_agents:OpenAiAgents", requirements=True),
        Entry(
            "autogen-ext",
            DOCKER,
            "autogen:Autogen",
            requirements=True,
            note="a command is a shell script; files are in a folder of the host, mounted; the network is on",
        ),
        Entry(
            "smolagents",
            DOCKER,
            "smolagents:Smolagents",
            requirements=True,
            image="sandboxkit-bench/smolagents",
            note="runs Python in a kernel that is in the image, a command from there; the network is on",
        ),
    )
}
