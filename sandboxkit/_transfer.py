"""Uploads and downloads: files by `write` and `read`, directories by `unpack` and `pack`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from . import _validate as check
from ._applets import AppletHost, Applets, Call, host_error, new_token, sandbox_path
from ._download import HostFile, HostTree, receive_tree
from ._records import Identity, Reader
from ._upload import Item, Plan, file_chunks, open_host_file, plan_tree, unpack_input
from .errors import FileTooLargeError, SandboxError
from .file_results import FileProgress, ProgressFunction, Transfer

__all__ = ["Bounds", "Seed", "download", "sow", "upload"]

_DOWNLOAD_MAX = 1 << 30
_UPLOAD_MAX = 1 << 62
_ENTRIES_MAX = 1_000_000


@attrs.frozen(kw_only=True)
class Bounds:
    """What a transfer may move."""

    exclude: tuple[str, ...]
    file_max: int
    total_max: int | None
    entries_max: int


def upload(applets: Applets, call: Call, host_path: str, bounds: Bounds, progress: ProgressFunction | None) -> Transfer:
    """`call` says where to, and its time."""
    total_max = _UPLOAD_MAX if bounds.total_max is None else bounds.total_max
    if os.path.isdir(host_path):
        plan = plan_tree(
            host_path,
            call.path,
            exclude=bounds.exclude,
            file_max=bounds.file_max,
            total_max=total_max,
            entries_max=bounds.entries_max,
        )
        send(applets, call, plan, bounds.file_max, progress)
        return plan.transfer()
    most = min(bounds.file_max, total_max)
    fd, size = open_host_file(host_path, most)
    try:
        token = new_token()
        mode = os.fstat(fd).st_mode & 0o777
        written = Call(
            "write",
            call.path,
            4,
            mode,
            size,
            most,
            token,
            what="written",
            path=call.path,
            input=file_chunks(fd, size, os.path.basename(host_path), progress),
            timeout=call.timeout,
            abort=call.abort,
        )
        applets.run_tidily(written, token)
    finally:
        os.close(fd)
    return Transfer(files=1, bytes=size)


def send(applets: Applets, call: Call, plan: Plan, file_max: int, progress: ProgressFunction | None) -> None:
    """A plan through one `unpack`."""
    token = new_token()
    unpack = Call(
        "unpack",
        *(token, file_max, plan.size),
        what="written",
        path=call.path,
        input=unpack_input(plan.items, plan.size, progress),
        timeout=call.timeout,
        abort=call.abort,
    )
    applets.run_tidily(unpack, token)


def download(
    applets: Applets, call: Call, directory: bool, host_path: str, bounds: Bounds, progress: ProgressFunction | None
) -> Transfer:
    """`call` says where from, and its time."""
    total_max = _DOWNLOAD_MAX if bounds.total_max is None else bounds.total_max
    if not directory:
        return _download_file(applets, call, host_path, min(bounds.file_max, total_max), progress)
    pack = Call(
        "pack",
        call.path,
        bounds.file_max,
        total_max,
        bounds.entries_max,
        *bounds.exclude,
        what="read",
        path=call.path,
        timeout=call.timeout,
        abort=call.abort,
    )
    try:
        tree = HostTree(host_path)
    except OSError as error:
        raise host_error(f"{host_path!r} can't be made", error) from error
    with contextlib.closing(tree):
        return applets.records(
            pack,
            lambda reader: receive_tree(
                reader,
                tree,
                file_max=bounds.file_max,
                total_max=total_max,
                entries_max=bounds.entries_max,
                progress=progress,
            ),
        )


def _download_file(
    applets: Applets, call: Call, host_path: str, most: int, progress: ProgressFunction | None
) -> Transfer:
    read = Call("read", *(call.path, 0, "-", most), what="read", path=call.path, timeout=call.timeout, abort=call.abort)
    folder, name = os.path.split(host_path)
    with contextlib.ExitStack() as stack:
        try:
            fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise host_error(f"{folder or '.'!r} can't be opened", error) from error
        stack.callback(os.close, fd)
        received = 0

        def receive(reader: Reader) -> int:
            nonlocal received
            identity = Identity.parse(reader.exactly(Identity.SIZE))
            os.fchmod(file.descriptor, identity.mode & 0o777 | 0o400)
            for chunk in reader.rest():
                received += len(chunk)
                if received > most:
                    raise FileTooLargeError(f"{call.path!r} is larger than {most} bytes.", details={"path": call.path})
                file.write(chunk)
                if progress is not None:
                    progress(
                        FileProgress(
                            path=call.path, bytes_done=received, bytes_total=max(identity.size, received), files_done=0
                        )
                    )
            return received

        try:
            with HostFile(fd, name, None) as file:
                applets.records(read, receive)
        except OSError as error:
            raise host_error(f"{host_path!r} can't be written", error) from error
    return Transfer(files=1, bytes=received)


@attrs.frozen
class Seed:
    """What a new session's workspace holds before its first command."""

    files: tuple[tuple[str, bytes | str], ...]  # bytes, or a path on this machine
    directories: tuple[str, ...]

    @classmethod
    def of(cls, files: object, directories: object, workspace: str) -> Seed:
        """ConfigError or PathError for what can't be, before anything is made."""
        if files is not None and not isinstance(files, Mapping):
            check.fail("files", files, "a mapping of paths to bytes, text or pathlib.Path")
        if isinstance(directories, (str, bytes)) or not isinstance(directories, Sequence):
            check.fail("directories", directories, "a list of paths")
        found: list[tuple[str, bytes | str]] = []
        for path, content in (files or {}).items():
            inside = sandbox_path(f"files[{path!r}]", path, workspace)
            found.append((inside, _seed_content(f"files[{path!r}]", content)))
        return cls(
            tuple(found),
            tuple(sandbox_path(f"directories[{i}]", path, workspace) for i, path in enumerate(directories)),
        )

    def plan(self, file_max: int) -> Plan:
        """Everything, by the sizes of this moment; host paths that can't be read fail here."""
        items = [Item(path=path, type="directory", mode=0o755) for path in self.directories]
        skipped: list[tuple[str, str]] = []
        for path, content in self.files:
            if isinstance(content, bytes):
                if len(content) > file_max:
                    raise FileTooLargeError(
                        f"{path!r} has {len(content)} bytes, more than limits.max_file_bytes, {file_max}."
                    )
                items.append(Item(path=path, type="file", mode=0o644, size=len(content), content=content))
            elif os.path.isdir(content):
                tree = plan_tree(
                    content, path, exclude=(), file_max=file_max, total_max=_UPLOAD_MAX, entries_max=_ENTRIES_MAX
                )
                items += tree.items
                skipped += tree.skipped
            else:
                fd, size = open_host_file(content, file_max)
                mode = os.fstat(fd).st_mode & 0o777
                os.close(fd)
                folder, name = os.path.split(os.path.realpath(content))
                items.append(Item(path=path, type="file", mode=mode, size=size, root=folder, parts=(name,)))
        return Plan(items, skipped)


def _seed_content(field: str, content: object) -> bytes | str:
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    if isinstance(content, str):
        try:
            return content.encode()
        except UnicodeEncodeError:
            check.fail(field, content, "text that UTF-8 can hold, bytes or a pathlib.Path")
    if isinstance(content, os.PathLike):
        return check.text(field, os.fspath(content))
    return check.fail(field, content, "bytes, text or a pathlib.Path")


class Seeded(AppletHost, Protocol):
    """A session that is not handed out yet."""

    def destroy(self) -> None: ...


def sow(session: Seeded, plan: Plan, file_max: int) -> None:
    """Make what the plan says. On any exception the session is destroyed."""
    if not plan.items:
        return
    try:
        send(Applets(session), Call("unpack", what="written", path="."), plan, file_max, None)
    except BaseException:
        with contextlib.suppress(SandboxError):  # the first error is the one to tell
            session.destroy()
        raise
