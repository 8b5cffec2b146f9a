"""The suite's view of itself and of the backend it is given."""

from __future__ import annotations

import pytest

from sandboxkit.backend import Backend, EngineInfo, Feature
from sandboxkit.errors import EngineUnavailableError

from ._suite import RUN, RUN_LABEL, Requirement, Suite, Trait, applies, needs, standard_tests


class Declarations(Suite):
    """Nothing is left out in silence."""

    def test_the_declared_features_are_the_backends(self) -> None:
        """Conformance reads `backend.features`; a test class can't hide one."""
        assert self.backend.features == self.features

    def test_no_standard_test_is_dropped(self) -> None:
        """Dropping a standard test needs a strict, reasoned xfail."""
        had: set[Requirement] = {*self.features, *self.traits}
        dropped = []
        for name, standard in standard_tests(type(self)).items():
            actual = getattr(type(self), name)
            marks = [mark for mark in getattr(actual, "pytestmark", []) if mark.name == "xfail"]
            excused = any(mark.kwargs.get("strict") and mark.kwargs.get("reason") for mark in marks)
            if actual is not standard and applies(standard, had) and not excused:
                dropped.append(name)
        assert dropped == [], "override with @pytest.mark.xfail(strict=True, reason=...), and call the original"

    def test_the_backend_has_every_method(self) -> None:
        """`Backend` is a protocol that can be asked."""
        assert isinstance(self.backend, Backend)
        assert self.backend.name

    def test_the_engine_says_what_it_is(self) -> None:
        """`EngineInfo`: nothing is left empty."""
        info = self.info
        assert isinstance(info, EngineInfo)
        assert info.backend == self.backend.name
        assert info.version
        assert info.arch in ("x86_64", "aarch64")
        assert info.cgroup_version in (1, 2)
        assert self.backend.info() == info

    def test_a_second_connection_sees_the_same_containers(self) -> None:
        """Containers belong to the engine, not to a connection."""
        other = self.make_backend()
        try:
            with self.create() as session:
                (status,) = other.list({"sandboxkit.session": session.id})
                assert status.labels[RUN_LABEL] == RUN
                assert other.inspect(status.id).running
        finally:
            other.close()

    def test_removing_what_is_gone_is_no_error(self) -> None:
        """`Backend.remove`: no error when it is gone already."""
        with self.create() as session:
            (status,) = self.backend.list({"sandboxkit.session": session.id})
        self.backend.remove(status.id)
        self.backend.remove(status.id)

    def test_close_may_be_called_twice(self) -> None:
        """`Backend.close`: idempotent."""
        other = self.make_backend()
        other.info()
        other.close()
        other.close()

    @needs(Feature.IMAGES, Trait.OWN_PROCESSES)
    def test_an_address_where_nothing_answers_is_named(self) -> None:
        """EngineUnavailableError lists every socket tried and how to start the engine."""
        with pytest.raises(EngineUnavailableError, match="no-such-socket") as caught:
            type(self.backend).connect("unix:///no-such-socket", may_start=False)
        assert caught.value.retryable
        tried = caught.value.details["tried"]
        assert isinstance(tried, list)
        assert len(tried) == 1
        assert tried[0].startswith("unix:///no-such-socket: ")
