"""Telling of progress: a caller's function, or a bar by `rich`, which is optional."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from . import _validate as check
from .errors import ConfigError
from .file_results import FileProgress, ProgressFunction

__all__ = ["ProgressOption", "shown"]

ProgressOption = ProgressFunction | bool | None


@contextlib.contextmanager
def shown(option: ProgressOption, title: str) -> Iterator[ProgressFunction | None]:
    """The function to tell, for the length of the block. ConfigError for another type, or when `rich` is missing."""
    if option is None or option is False:
        yield None
    elif option is not True:
        if not callable(option):
            check.fail("progress", option, "a function that takes one FileProgress, True, False or None")
        yield option
    else:
        with _bar(title) as told:
            yield told


@contextlib.contextmanager
def _bar(title: str) -> Iterator[ProgressFunction]:
    try:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
    except ImportError:
        raise ConfigError(
            "progress is True and the package rich is missing; accepted: a function, or pip install 'sandboxkit[cli]'",
            details={"field": "progress"},
        ) from None
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def told(progress: FileProgress) -> None:
            bar.update(task, completed=progress.bytes_done, total=progress.bytes_total)

        yield told
