"""Podman's libpod API, through podman-py's API client."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sandboxkit.backend import AGENT_FOLDER, ByteStream, ContainerStatus, EngineInfo, Progress, ProgressCallback
from sandboxkit.engines.api import ContainerRequest, ImageFacts
from sandboxkit.engines.archives import STAT_HEADER, FileFacts, file_archive, first_owner, parse_stat
from sandboxkit.engines.clients import ClientPool
from sandboxkit.engines.discovery import PROBE_TIMEOUT, Address
from sandboxkit.engines.sockets import stream_of, unix_problem
from sandboxkit.engines.ulimits import Ulimit, ulimits_for
from sandboxkit.errors import EngineError, EngineUnavailableError

from ._answers import api_version, engine_info, listed_status, status
from ._body import container_body, helper_body
from ._errors import translated
from ._images import is_named, local_references, pull_references
from ._sdk import make_client

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
_TAR = {"Content-Type": "application/x-tar"}


class PodmanApi:
    """An EngineApi (see `sandboxkit.engines.api`, whose docstrings hold here)."""

    gives_volumes_to_user = True
    engine = "Podman"

    def __init__(self, address: Address, info: EngineInfo, timeout: float) -> None:
        self._info = info
        self._timeout = timeout
        self._clients: ClientPool[Any] = ClientPool(lambda: make_client(address, info.api_version, timeout))
        self._ulimits = ulimits_for(address.socket_path, PROBE_TIMEOUT)

    @classmethod
    def probe(cls, address: Address, timeout: float) -> PodmanApi:
        """The API at this address, if it is Podman's; else EngineUnavailableError or EngineError with `details["reason"]`."""
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
        return cls(address, info, timeout)

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
                return ImageFacts(str(found["Id"]), reference, str(found.get("User") or (found.get("Config") or {}).get("User") or ""))
        return None

    def pull(self, image: str, progress: ProgressCallback | None) -> None:
        problems = []
        for reference in pull_references(image):
            problem = self._pull(image, reference, progress)
            if problem is None:
                return
            problems.append(problem)
        reason = "; ".join(problems)
        raise EngineError(f"Podman could not pull {image}: {reason}", details={"reason": reason})

    def pull_command(self, image: str) -> str:
        return f"podman pull {pull_references(image)[0]}"

    def create(self, request: ContainerRequest) -> str:
        profile = request.spec.security.seccomp
        path = None if profile is None else self._seccomp_path(request, profile)
        return self._create(container_body(request, path))

    def create_helper(self, name: str, image: str, labels: Mapping[str, str], volume: str, folder: str) -> str:
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
            # 500 when it goes in the midst of the answer.
            gone = response.status_code >= 400 and client.get(f"containers/{container}/exists").status_code == 404
            return None if gone else status(_json(response))

    def list(self, labels: Mapping[str, str]) -> Sequence[ContainerStatus]:
        wanted = [f"{name}={value}" if value else name for name, value in labels.items()]
        parameters = {"all": "true", "filters": json.dumps({"label": wanted})}
        with self._call("list containers") as client:
            return [listed_status(row) for row in _json(client.get("containers/json", params=parameters))]

    def delete(self, container: str) -> None:
        with self._call("remove", container) as client:
            # Without timeout=0 a PID 1 that ignores SIGTERM takes ten seconds.
            response = client.delete(
                f"containers/{container}", params={"force": "true", "timeout": "0", "v": "true"}
            )
            if response.status_code == 404:
                return
            response.raise_for_status()
            reports = response.json() if response.content else None
        for report in reports or ():
            if report.get("Err"):
                reason = str(report["Err"])
                raise EngineError(f"Podman did not remove {container}: {reason}", details={"reason": reason})

    def stat(self, container: str, path: str) -> FileFacts | None:
        with self._call("look for a file in", container) as client:
            response = client.head(f"containers/{container}/archive", params={"path": path})
            if response.status_code == 404:
                return None
            response.raise_for_status()
            return parse_stat(response.headers[STAT_HEADER])

    def owner(self, container: str, folder: str) -> int | None:
        with self._call("look for a folder in", container) as client:
            response = client.get(
                f"containers/{container}/archive",
                params={"path": folder},
                headers={"Accept-Encoding": "identity"},
                stream=True,
            )
            with contextlib.closing(response):
                if response.status_code == 404:
                    return None
                response.raise_for_status()
                return first_owner(response.raw)

    def put(self, container: str, folder: str, archive: bytes) -> None:
        with self._call("put files into", container) as client:
            client.put(
                f"containers/{container}/archive", params={"path": folder}, data=archive, headers=_TAR
            ).raise_for_status()

    def ensure_volume(self, name: str, labels: Mapping[str, str]) -> None:
        with self._call("create the volume", name) as client:
            found = _json_or_none(client.get(f"volumes/{name}/json"))
            if found is not None:
                if dict(found.get("Labels") or {}).items() >= dict(labels).items():
                    return
                # Made by Podman itself, in silence and without labels, for a container after the volume was pruned. One that is
                # in use stays as it is.
                client.delete(f"volumes/{name}")
            response = client.post(
                "volumes/create", data=json.dumps({"Name": name, "Labels": dict(labels)}), headers=_JSON
            )
            if response.status_code >= 400 and client.get(f"volumes/{name}/exists").status_code != 204:
                response.raise_for_status()

    def close(self) -> None:
        self._clients.close()

    def _create(self, body: Mapping[str, Any]) -> str:
        with self._call("create", str(body["name"])) as client:
            return str(_json(client.post("containers/create", data=json.dumps(body), headers=_JSON))["Id"])

    def _pull(self, image: str, reference: str, progress: ProgressCallback | None) -> str | None:
        """Why it failed; None when it did not."""
        with self._call("pull", reference) as client:
            response = client.post(
                "images/pull", params={"reference": reference}, stream=True, timeout=max(self._timeout, _SILENT_PULL)
            )
            with contextlib.closing(response):
                response.raise_for_status()
                for line in response.iter_lines():
                    step = json.loads(line) if line else {}
                    if step.get("error"):
                        return str(step["error"])
                    if progress is not None and step.get("stream"):
                        progress(Progress(image=image, status=str(step["stream"]).strip()))
        return None

    def _seccomp_path(self, request: ContainerRequest, profile: str) -> str:
        """A file on the engine's host that holds the profile: the libpod API takes a path there and nothing else.

        The agent's volume is the one folder of that host that we can write to, also on a remote engine. Podman reads the file while
        it creates the container.
        """
        volume = request.spec.agent.volume
        name = f"seccomp-{hashlib.sha256(profile.encode()).hexdigest()[:16]}.json"
        helper = f"sandboxkit-helper-{secrets.token_hex(8)}"
        try:
            self.create_helper(helper, request.image, {"sandboxkit.role": "agent-installer"}, volume, AGENT_FOLDER)
            if self.stat(helper, f"{AGENT_FOLDER}/{name}") is None:
                self.put(helper, AGENT_FOLDER, file_archive(name, profile.encode()))
        finally:
            self.delete(helper)
        with self._call("find the volume", volume) as client:
            return f"{_json(client.get(f'volumes/{volume}/json'))['Mountpoint']}/{name}"

    @contextlib.contextmanager
    def _call(self, operation: str, subject: str = "") -> Iterator[Any]:
        with self._clients.borrow() as client, translated(operation, subject):
            yield client


def _quoted(reference: str) -> str:
    return urllib.parse.quote(reference, safe="/:@")


def _json(response: Any) -> Any:
    response.raise_for_status()
    return response.json()


def _json_or_none(response: Any) -> Any:
    return None if response.status_code == 404 else _json(response)
