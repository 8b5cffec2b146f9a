"""The conformance suite: what a session promises, as tests that any backend runs by giving one factory.

Put this into a test file of yours, with your backend's name in it, and run pytest::

    from sandboxkit.backend import Backend, Feature
    from sandboxkit.conformance import Conformance


    class TestFirecracker(Conformance):
        features = frozenset({Feature.IMAGES, Feature.ISOLATION, Feature.CRASH_CLEANUP})
        images = {
            "shell": "my-registry/busybox",
            "python": "my-registry/python",
            "empty": "my-registry/empty",
            "static": "my-registry/static",
            "nonroot": "my-registry/nonroot",
        }

        @classmethod
        def make_backend(cls) -> Backend:
            return FirecrackerBackend.connect()

`features` is what the backend declares. It decides which tests there are: those of a declared feature, and for one that
is not declared the test that asking for it raises. A test of the suite compares it with the backend's own word. Nothing
is ever skipped. A test that a backend can't pass yet is overridden, with a reason::

        @pytest.mark.xfail(strict=True, reason="the hypervisor brings a second interface, see ...")
        def test_the_network_is_off(self, session: Session) -> None:
            super().test_the_network_is_off(session)

`images` maps what an image can do to its name on the engine:

- `shell`: `sh`, `cat`, `head`, `seq`, `awk`, `dd`, `setsid`, `stty` and their like (all of busybox), and a user `app`,
  1000:1000.
- `python`: `sh` and Python 3 as `python` and `python3`.
- `empty`: no program at all; `static`: one static program, `/hello`, which prints `hello from a static binary` and then
  each of its argv on a line; `nonroot`: as `shell`, with user 1000 as the image's own. Only with `Feature.IMAGES`.

Around each test stands a leak check: the suite's containers, what `Suite.leftovers` tells of, threads, open files and
child processes are what they were, and inside the shared session no process is left. Bounds in time are multiplied by
`SANDBOXKIT_TEST_MARGIN` (2). How much the tests of races and leaks try is told by `SANDBOXKIT_TEST_EXECS` (100),
`SANDBOXKIT_TEST_INTERRUPTS` (150), `SANDBOXKIT_TEST_CYCLES` (20 sessions in a row) and `SANDBOXKIT_TEST_KILLS` (5
processes). The tests need pytest (`pip install 'sandboxkit[test]'`) and nothing of its configuration.
"""

from __future__ import annotations

import pkgutil

import pytest

# Before the modules are imported: their plain asserts then explain themselves when they fail, in anybody's run.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from ._aborts import Aborts, AbortSignals  # noqa: E402
from ._arguments import Arguments, Environment, WorkingFolder  # noqa: E402
from ._commands import BackgroundChildren, Commands  # noqa: E402
from ._concurrency import Concurrency, ManyInARow  # noqa: E402
from ._egress import GuardedEgress, HostileToTheProxy  # noqa: E402
from ._file_safety import Atomicity, Outside  # noqa: E402
from ._file_transfers import Pages, Search, Seeding, Transfers  # noqa: E402
from ._files import FileContents, FileNames, Folders  # noqa: E402
from ._hostile import Hostile  # noqa: E402
from ._input import Input  # noqa: E402
from ._interaction import Callbacks, OpenInput, Terminals  # noqa: E402
from ._isolation import Confinement, EnforcedLimits, Images  # noqa: E402
from ._lifecycle import Lifecycle, Loss  # noqa: E402
from ._lifecycle_detached import Detached, TimeToLive  # noqa: E402
from ._lifecycle_hooks import Hooking  # noqa: E402
from ._lifecycle_pool import Pools  # noqa: E402
from ._lifecycle_prune import Pruning  # noqa: E402
from ._lifecycle_resume import Resuming, Snapshotting  # noqa: E402
from ._lifecycle_workspaces import Workspaces  # noqa: E402
from ._managed_processes import LastingProcesses, ManagedProcesses  # noqa: E402
from ._output import Output  # noqa: E402
from ._ports import Ports, PublishedPorts  # noqa: E402
from ._process_logs import ProcessOutput  # noqa: E402
from ._processes import Crashes, Forks, KeyboardInterrupts  # noqa: E402
from ._refusals import Refusals, Unsupported  # noqa: E402
from ._streams import Backpressure, Streams  # noqa: E402
from ._suite import Suite, Trait  # noqa: E402
from ._timeouts import Timeouts  # noqa: E402
from ._tools import Programs, ToolCommands, ToolFiles, ToolProcesses  # noqa: E402
from ._tunnels import Exposing, Forwarding, Reattaching  # noqa: E402
from ._unreachable import Unreachable  # noqa: E402
from ._whole import Declarations  # noqa: E402

__all__ = ["Conformance", "Suite", "Trait"]


class Conformance(
    Declarations,
    Commands,
    BackgroundChildren,
    Output,
    Input,
    Arguments,
    Environment,
    WorkingFolder,
    Timeouts,
    Aborts,
    AbortSignals,
    Hostile,
    Refusals,
    Unsupported,
    Lifecycle,
    Loss,
    KeyboardInterrupts,
    Forks,
    Crashes,
    Confinement,
    EnforcedLimits,
    Images,
    Streams,
    Backpressure,
    OpenInput,
    Terminals,
    Callbacks,
    Concurrency,
    ManyInARow,
    FileContents,
    FileNames,
    Folders,
    Outside,
    Atomicity,
    Pages,
    Search,
    Transfers,
    Seeding,
    Pruning,
    Pools,
    Hooking,
    Workspaces,
    Detached,
    TimeToLive,
    Resuming,
    Snapshotting,
    Ports,
    PublishedPorts,
    Unreachable,
    GuardedEgress,
    HostileToTheProxy,
    ManagedProcesses,
    ProcessOutput,
    LastingProcesses,
    Programs,
    ToolCommands,
    ToolFiles,
    Forwarding,
    Reattaching,
    Exposing,
    ToolProcesses,
):
    """The whole suite; see the package's docstring."""
