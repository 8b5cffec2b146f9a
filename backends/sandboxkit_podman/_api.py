"""Podman's libpod API, through podman-py's API client."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import urllib.parse
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from sandboxkit.backend import AGENT_FOLDER, ByteStream, ContainerStatus, EngineInfo, Progress, ProgressCallback
from sandboxkit.engines.api import ContainerRequest, ImageFacts
from sandboxkit.engines.archives import file_archive
from sandboxkit.engines.backend import helper_labels
from sandboxkit.engines.clients import Calls
from sandboxkit.engines.discovery import PROBE_TIMEOUT, Address
from sandboxkit.engines.sockets import stream_of, unix_problem
from sandboxkit.engines.ulimits import Ulimit, ulimits_for
from sandboxkit.errors import EngineError, EngineUnavailableError

from ._answers import api_version, engine_info, listed_status, status
from ._body import container_body, helper_body
from ._errors import translated
from ._files import PodmanFiles
from ._images import is_named, local_references, pull_references
from ._running import PodmanRunning
from ._sdk import make_client
from ._service import PodmanService
from ._snapshots import PodmanSnapshots
from ._volumes import PodmanVolumes

__all__ = ["PodmanApi"]

_ATTACH = {
    "stdin": "true",
    "stdout": "true",
    "stderr": "true",
    "stream": "true",
    "logs": "false",
    # Podman looks for its detach keys, ctrl-p ctrl-q, in binary streams too, unless there are none.
    "detachKeys": "",
}
_SILENT_PULL = 300.0
_JSON = {"Content-Type": "application/json"}


class PodmanApi:
    """An EngineApi (see `sandboxkit.engines.api`, whose docstrings hold here)."""

    engine = "Podman"

    def __init__(self, address: Address, info: EngineInfo, timeout: float, service: PodmanService | None) -> None:
        self._info = info
        self._service = service
        self._timeout = timeout
        self._call: Calls[Any] = Calls(lambda: make_client(address, info.api_version, timeout), translated)
        self.files = PodmanFiles(self._call)
        self._ulimits = ulimits_for(address.socket_path, PROBE_TIMEOUT)
        self.volumes = PodmanVolumes(self._call)
        self.running = PodmanRunning(self._call, self)
        self.snapshots = PodmanSnapshots(self._call)

    @classmethod
    def probe(cls, address: Address, timeout: float, service: PodmanService | None = None) -> PodmanApi:
        """The API at this address, if it is Podman's; else an error with `details["reason"]`."""
        patience = min(timeout, PROBE_TIMEOUT)
        problem = unix_problem(address.socket_path, patience) if address.socket_path else None
        if problem:
            raise EngineUnavailableError(problem, details={"reason": problem})
        with translated("answer"):
            with contextlib.closing(make_client(address, "4.0.0", patience)) as client:
                version = _json(client.get("../../version"))
                known = api_version(version)
                if known is None:
                    reason = "something answers there that is not Podman"
                    raise EngineUnavailableError(reason, details={"reason": reason})
            with contextlib.closing(make_client(address, known, patience)) as client:
                info = engine_info(address.url, version, _json(client.get("info")))
            if service is not None:
                service.keep_open(_endless_request(address, known, patience))
        return cls(address, info, timeout, service)

    def info(self) -> EngineInfo:
        return self._info

    def ulimits(self) -> Sequence[Ulimit]:
        return self._ulimits

    def image(self, image: str) -> ImageFacts | None:
        references = local_references(image)
        for reference in references:
            with self._call("look for the image", image) as client:
                found = _json_or_none(client.get(f"images/{_quoted(reference)}/json"))
            if found is None:
                continue
            named = reference != image or len(references) == 1
            if named or is_named(image, str(found["Id"]), list(found.get("NamesHistory") or found["RepoTags"] or ())):
                return ImageFacts(
                    str(found["Id"]), reference, str(found.get("User") or (found.get("Config") or {}).get("User") or "")
                )
        return None

    def pull(self, image: str, progress: ProgressCallback | None) -> None:
        problems = []
        for reference in pull_references(image):
            try:
                self._pull(image, reference, progress)
                return
            except EngineError as error:
                problems.append(str(error.details["reason"]))
        reason = "; ".join(problems)
        raise EngineError(f"Podman could not pull {image}: {reason}", details={"reason": reason})

    def pull_command(self, image: str) -> str:
        return f"podman pull {pull_references(image)[0]}"

    def create(self, request: ContainerRequest) -> str:
        profile = request.spec.security.seccomp
        path = None if profile is None else self._seccomp_path(request, profile)
        return self._create(container_body(request, path))

    def create_helper(self, name: str, image: str, labels: Mapping[str, str], volume: str | None, folder: str) -> str:
        return self._create(helper_body(name, image, labels, volume, folder))

    def attach(self, container: str) -> ByteStream:
        # podman-py has no attach that gives a socket. Podman makes the container ready here ("init") if it is not yet.
        with self._call("attach", container) as client:
            response = client.post(
                f"containers/{container}/attach",
                params=_ATTACH,
                headers={"Connection": "Upgrade", "Upgrade": "tcp"},
                stream=True,
            )
            try:
                response.raise_for_status()
                return stream_of(response)
            except BaseException:
                response.close()
                raise

    def start(self, container: str) -> None:
        with self._call("start", container) as client:
            client.post(f"containers/{container}/start").raise_for_status()

    def inspect(self, container: str) -> ContainerStatus | None:
        with self._call("inspect", container) as client:
            response = client.get(f"containers/{container}/json")
            # 500 when it goes in the midst of the answer. A 404 is not asked about again: it may be made meanwhile.
            gone = response.status_code == 404 or (
                response.status_code >= 400 and client.get(f"containers/{container}/exists").status_code == 404
            )
            return None if gone else status(_json(response))

    def list(self, labels: Mapping[str, str]) -> Sequence[ContainerStatus]:
        wanted = [f"{name}={value}" if value else name for name, value in labels.items()]
        parameters = {"all": "true", "filters": json.dumps({"label": wanted})}
        with self._call("list containers") as client:
            return [listed_status(row) for row in _json(client.get("containers/json", params=parameters))]

    def delete(self, container: str) -> None:
        with self._call("remove", container) as client:
            # Without timeout=0 a PID 1 that ignores SIGTERM takes ten seconds. `v` is what the documentation has,
            # `volumes` what the libpod API reads: with `v` alone the anonymous volumes stayed (Podman 4.3).
            parameters = {"force": "true", "timeout": "0", "v": "true", "volumes": "true"}
            response = client.delete(f"containers/{container}", params=parameters)
            if response.status_code == 404:
                return
            response.raise_for_status()
            reports = response.json() if response.content else None
        for report in reports or ():
            if report.get("Err"):
                reason = str(report["Err"])
                raise EngineError(f"Podman did not remove {container}: {reason}", details={"reason": reason})

    def ensure_volume(self, name: str, labels: Mapping[str, str]) -> None:
        with self._call("create the volume", name) as client:
            found = _json_or_none(client.get(f"volumes/{name}/json"))
            if found is not None:
                if dict(found.get("Labels") or {}).items() >= dict(labels).items():
                    return
                # Made by Podman itself, in silence and without labels, for a container after the volume was pruned.
                # One that is in use stays as it is.
                client.delete(f"volumes/{name}")
            response = client.post(
                "volumes/create", data=json.dumps({"Name": name, "Labels": dict(labels)}), headers=_JSON
            )
            if response.status_code >= 400 and client.get(f"volumes/{name}/exists").status_code != 204:
                response.raise_for_status()

    def close(self) -> None:
        self._call.close()
        if self._service is not None:
            self._service.stop()

    def _create(self, body: Mapping[str, Any]) -> str:
        with self._call("create", str(body["name"])) as client:
            return str(_json(client.post("containers/create", data=json.dumps(body), headers=_JSON))["Id"])

    def _pull(self, image: str, reference: str, progress: ProgressCallback | None) -> None:
        # What `progress` raises goes to the caller as it is: it is called outside of the generator that translates.
        with contextlib.closing(self._pull_steps(reference)) as steps:
            for step in steps:
                if step.get("error"):
                    reason = str(step["error"])
                    raise EngineError(f"Podman could not pull {reference}: {reason}", details={"reason": reason})
                if progress is not None and step.get("stream"):
                    progress(Progress(image=image, status=str(step["stream"]).strip()))

    def _pull_steps(self, reference: str) -> Generator[dict[str, Any], None, None]:
        with self._call("pull", reference) as client:
            response = client.post(
                "images/pull", params={"reference": reference}, stream=True, timeout=max(self._timeout, _SILENT_PULL)
            )
            with contextlib.closing(response):
                response.raise_for_status()
                for line in response.iter_lines():
                    if line:
                        yield json.loads(line)

    def _seccomp_path(self, request: ContainerRequest, profile: str) -> str:
        """A file on the engine's host that holds the profile: the libpod API takes a path there and nothing else.

        The agent's volume is the one folder of that host that we can write to, also on a remote engine. Podman reads
        the file while it creates the container.
        """
        volume = request.spec.agent.volume
        name = f"seccomp-{hashlib.sha256(profile.encode()).hexdigest()[:16]}.json"
        helper = f"sandboxkit-helper-{secrets.token_hex(8)}"
        try:
            self.create_helper(helper, request.image, helper_labels(), volume, AGENT_FOLDER)
            if self.files.stat(helper, f"{AGENT_FOLDER}/{name}") is None:
                self.files.put(helper, AGENT_FOLDER, file_archive(name, profile.encode()))
        finally:
            self.delete(helper)
        with self._call("find the volume", volume) as client:
            return f"{_json(client.get(f'volumes/{volume}/json'))['Mountpoint']}/{name}"


def _endless_request(address: Address, version: str, patience: float) -> Callable[[], object]:
    """Ask for events that never come, and return what ends the request."""
    client = make_client(address, version, patience)
    try:
        filters = json.dumps({"label": ["sandboxkit.no-such-label"]})
        response = client.get("events", params={"stream": "true", "filters": filters}, stream=True)
        response.raise_for_status()
    except BaseException:
        client.close()
        raise

    def end() -> None:
        response.close()
        client.close()

    return end


def _quoted(reference: str) -> str:
    return urllib.parse.quote(reference, safe="/:@")


def _json(response: Any) -> Any:
    response.raise_for_status()
    return response.json()


def _json_or_none(response: Any) -> Any:
    return None if response.status_code == 404 else _json(response)
