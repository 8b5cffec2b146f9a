"""Images made of Podman's containers."""

from __future__ import annotations

import contextlib
import json
import secrets
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sandboxkit.backend_parts import ImageStatus
from sandboxkit.engines.backend import helper_labels
from sandboxkit.engines.snapshots import CHUNK, clearing_archive, config_changes

__all__ = ["PodmanSnapshots"]

_JSON = {"Content-Type": "application/json"}
_TAR = {"Content-Type": "application/x-tar"}
_LOCAL = "localhost/"


class PodmanSnapshots:
    """See `sandboxkit.backend_parts.Snapshots`. `call` lends a client and translates its errors."""

    def __init__(self, call: Callable[..., AbstractContextManager[Any]]) -> None:
        self._call = call

    def commit(self, container_id: str, tag: str, labels: Mapping[str, str], folder: str | None) -> ImageStatus:
        with self._call("make an image of", container_id) as client:
            found = _json(client.get(f"containers/{container_id}/json"))
            original = _json(client.get(f"images/{found['Image']}/json")).get("Config") or {}
        changes = config_changes(found["Config"], original, labels)
        if folder is None:
            self._commit(container_id, tag, changes)
        else:
            # A volume is no part of a container's files: they are put where it was into a second container of the
            # image.
            base = self._commit(container_id, None, changes)
            try:
                with self._helper(base, str(found["Config"].get("User") or "0")) as helper:
                    self._copy(container_id, helper, folder, running=str(found["State"]["Status"]) == "running")
                    self._commit(helper, tag, changes)
            finally:
                # Refused while the final image stands on it; it goes with that.
                with self._call("remove an image") as client:
                    client.delete(f"images/{base}")
        with self._call("look for the image", tag) as client:
            return _status(_json(client.get(f"images/{_quoted(_LOCAL + tag)}/json")), tag)

    def list(self, labels: Mapping[str, str]) -> Sequence[ImageStatus]:
        wanted = [f"{name}={value}" if value else name for name, value in labels.items()]
        with self._call("list images") as client:
            rows = _json(client.get("images/json", params={"filters": json.dumps({"label": wanted} if wanted else {})}))
        return [
            _status(row, tag.removeprefix(_LOCAL))
            for row in rows or ()
            for tag in row.get("RepoTags") or row.get("Names") or ()
            if tag.startswith(_LOCAL)
        ]

    def remove(self, tag: str) -> bool:
        with self._call("remove the image", tag) as client:
            response = client.delete(f"images/{_quoted(_LOCAL + tag)}")
            if response.status_code == 404:
                return False
            response.raise_for_status()
        return True

    def _commit(self, container: str, tag: str | None, changes: Sequence[str]) -> str:
        # Not paused: that needs a freezer, which rootless engines on cgroup v1 have not.
        query: list[tuple[str, str]] = [("container", container), ("pause", "false"), ("format", "docker")]
        if tag is not None:
            repository, _, version = tag.partition(":")
            query += [("repo", _LOCAL + repository), ("tag", version or "latest")]
        query += [("changes", change) for change in changes]
        with self._call("make an image of", container) as client:
            return str(_json(client.post(f"commit?{urllib.parse.urlencode(query)}"))["Id"])

    @contextlib.contextmanager
    def _helper(self, image: str, user: str) -> Iterator[str]:
        name = f"sandboxkit-helper-{secrets.token_hex(8)}"
        body = {
            "name": name,
            "image": image,
            "entrypoint": ["/"],
            "user": user,  # whom Podman gives what is put there
            "labels": helper_labels(),
            "netns": {"nsmode": "none"},
            "image_volume_mode": "ignore",
            "log_configuration": {"driver": "none"},
        }
        try:
            with self._call("create", name) as client:
                _json(client.post("containers/create", data=json.dumps(body), headers=_JSON))
            yield name
        finally:
            with self._call("remove", name) as client:
                client.delete(f"containers/{name}", params={"force": "true", "v": "true"})

    def _copy(self, source: str, target: str, folder: str, *, running: bool) -> None:
        with self._call("read from", source) as reader, self._call("put files into", target) as writer:
            response = reader.get(
                f"containers/{source}/archive",
                params={"path": folder},
                headers={"Accept-Encoding": "identity"},
                stream=True,
            )
            with contextlib.closing(response):
                response.raise_for_status()
                self._put(writer, target, "/", clearing_archive(folder))
                # The names in the archive begin with the folder's; of a container that does not run they do not.
                self._put(writer, target, "/" if running else folder, response.iter_content(CHUNK))

    @staticmethod
    def _put(client: Any, target: str, folder: str, archive: bytes | Iterator[bytes]) -> None:
        answer = client.put(f"containers/{target}/archive", params={"path": folder}, data=archive, headers=_TAR)
        answer.raise_for_status()


def _status(found: Any, tag: str) -> ImageStatus:
    labels = found.get("Labels") or (found.get("Config") or {}).get("Labels") or {}
    return ImageStatus(id=str(found["Id"]), tag=tag, size=int(found.get("Size") or 0), labels=dict(labels))


def _quoted(reference: str) -> str:
    return urllib.parse.quote(reference, safe="/:@")


def _json(response: Any) -> Any:
    response.raise_for_status()
    return response.json()
