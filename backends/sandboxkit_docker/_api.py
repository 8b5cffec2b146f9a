"""Docker's API, through the docker SDK's low-level client."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import docker.auth
import docker.errors
import docker.utils

from sandboxkit.backend import ByteStream, ContainerStatus, EngineInfo, Progress, ProgressCallback
from sandboxkit.engines.api import ContainerRequest, ImageFacts
from sandboxkit.engines.clients import Calls
from sandboxkit.engines.discovery import PROBE_TIMEOUT, Address
from sandboxkit.engines.sockets import stream_of, unix_problem
from sandboxkit.engines.ulimits import Ulimit, ulimits_for
from sandboxkit.errors import EngineError, EngineUnavailableError

from ._answers import engine_info, listed_status, status
from ._body import container_body, helper_body
from ._errors import translated
from ._files import DockerFiles
from ._running import DockerRunning
from ._sdk import make_client
from ._snapshots import DockerSnapshots
from ._volumes import DockerVolumes

__all__ = ["DockerApi"]

_ATTACH = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1, "logs": 0}
_SILENT_PULL = 300.0


class DockerApi:
    """An EngineApi (see `sandboxkit.engines.api`, whose docstrings hold here)."""

    engine = "Docker"

    def __init__(self, address: Address, info: EngineInfo, timeout: float) -> None:
        self._info = info
        self._timeout = timeout
        self._call: Calls[Any] = Calls(lambda: make_client(address, info.api_version, timeout), translated)
        self.files = DockerFiles(self._call, timeout)
        self._ulimits = ulimits_for(address.socket_path, PROBE_TIMEOUT)
        self.volumes = DockerVolumes(self._call)
        self.running = DockerRunning(self._call, self)
        self.snapshots = DockerSnapshots(self._call)

    @classmethod
    def probe(cls, address: Address, timeout: float) -> DockerApi:
        """The API at this address, if it is Docker's; else an error with `details["reason"]`."""
        patience = min(timeout, PROBE_TIMEOUT)
        problem = unix_problem(address.socket_path, patience) if address.socket_path else None
        if problem:
            raise EngineUnavailableError(problem, details={"reason": problem})
        with translated("answer"):
            # The version is unknown yet and goes into no URL before it is known.
            with contextlib.closing(
                make_client(address, docker.constants.DEFAULT_DOCKER_API_VERSION, patience)
            ) as client:
                version = client.version(api_version=False)
                _check_is_docker(version)
            with contextlib.closing(make_client(address, str(version["ApiVersion"]), patience)) as client:
                info = engine_info(address.url, version, client.info())
        return cls(address, info, timeout)

    def info(self) -> EngineInfo:
        return self._info

    def ulimits(self) -> Sequence[Ulimit]:
        return self._ulimits

    def image(self, image: str) -> ImageFacts | None:
        with self._call("look for the image", image) as client:
            try:
                found = client.inspect_image(image)
            except docker.errors.NotFound:
                return None
        return ImageFacts(str(found["Id"]), image, str((found.get("Config") or {}).get("User") or ""))

    def pull(self, image: str, progress: ProgressCallback | None) -> None:
        # What `progress` raises goes to the caller as it is: it is called outside of the generator that translates.
        with contextlib.closing(self._pull_steps(image)) as steps:
            for step in steps:
                problem = step.get("error")
                if problem:
                    raise EngineError(f"Docker could not pull {image}: {problem}", details={"reason": str(problem)})
                if progress is not None:
                    progress(_progress(image, step))

    def pull_command(self, image: str) -> str:
        return f"docker pull {image}"

    def create(self, request: ContainerRequest) -> str:
        with self._call("create", request.spec.name) as client:
            return str(client.create_container_from_config(container_body(request), request.spec.name)["Id"])

    def create_helper(self, name: str, image: str, labels: Mapping[str, str], volume: str | None, folder: str) -> str:
        with self._call("create", name) as client:
            body = helper_body(image, labels, volume, folder)
            return str(client.create_container_from_config(body, name)["Id"])

    def attach(self, container: str) -> ByteStream:
        # As the SDK's attach_socket does, which has no timeout and loses what came with the headers.
        with self._call("attach", container) as client:
            response = client._post(
                client._url("/containers/{0}/attach", container),
                params=_ATTACH,
                headers={"Connection": "Upgrade", "Upgrade": "tcp"},
                stream=True,
            )
            try:
                client._raise_for_status(response)
                return stream_of(response)
            except BaseException:
                response.close()
                raise

    def start(self, container: str) -> None:
        with self._call("start", container) as client:
            client.start(container)

    def inspect(self, container: str) -> ContainerStatus | None:
        with self._call("inspect", container) as client:
            try:
                return status(client.inspect_container(container))
            except docker.errors.NotFound:
                return None

    def list(self, labels: Mapping[str, str]) -> Sequence[ContainerStatus]:
        wanted = [f"{name}={value}" if value else name for name, value in labels.items()]
        with self._call("list containers") as client:
            return [listed_status(row) for row in client.containers(all=True, filters={"label": wanted})]

    def delete(self, container: str) -> None:
        # 409 says that its removal, by AutoRemove, is under way: an EngineError.
        with self._call("remove", container) as client, contextlib.suppress(docker.errors.NotFound):
            client.remove_container(container, v=True, force=True)

    def ensure_volume(self, name: str, labels: Mapping[str, str]) -> None:
        # Docker answers with the volume of that name when there is one.
        with self._call("create the volume", name) as client:
            client.create_volume(name, labels=dict(labels))

    def close(self) -> None:
        self._call.close()

    def _pull_steps(self, image: str) -> Generator[dict[str, Any], None, None]:
        """As the SDK's own `pull`, but with a deadline for each step."""
        with self._call("pull", image) as client:
            repository, tag = docker.utils.parse_repository_tag(image)
            registry, _ = docker.auth.resolve_repository_name(repository)
            credentials = docker.auth.get_config_header(client, registry)
            response = client._post(
                client._url("/images/create"),
                params={"fromImage": repository, "tag": tag or "latest"},
                headers={"X-Registry-Auth": credentials} if credentials else {},
                stream=True,
                timeout=max(self._timeout, _SILENT_PULL),
            )
            with contextlib.closing(response):
                client._raise_for_status(response)
                yield from client._stream_helper(response, decode=True)


def _check_is_docker(version: Any) -> None:
    names = {str(component.get("Name")) for component in version.get("Components") or ()}
    if "Podman Engine" in names:
        reason = "Podman answers there, not Docker: use PodmanSandbox, or backend='podman'"
        raise EngineUnavailableError(reason, details={"reason": reason})
    if "Version" not in version or "ApiVersion" not in version:
        reason = "something answers there that is not Docker"
        raise EngineUnavailableError(reason, details={"reason": reason})


def _progress(image: str, step: dict[str, Any]) -> Progress:
    numbers = step.get("progressDetail") or {}
    return Progress(
        image=image,
        status=str(step.get("status", "")),
        layer=str(step.get("id", "")),
        current=numbers.get("current"),
        total=numbers.get("total"),
    )
