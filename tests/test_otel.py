"""The OpenTelemetry adapter against the real SDK, with exporters that keep what they are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sandboxkit import ErrorCode, FileWritten, Hooks, Limits, PathError, Sandbox
from sandboxkit.otel import otel_hooks
from tests.support.local import LocalBackend


class Telemetry:
    """Providers of the SDK, and what reached their exporters."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.hooks: Hooks = otel_hooks(tracer_provider=self.tracers, meter_provider=self.meters)

    def spans(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def metrics(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


@pytest.fixture
def sandbox(telemetry: Telemetry, tmp_path: Path) -> Sandbox:
    return Sandbox("local", LocalBackend(tmp_path), limits=Limits(allow_unenforced=True), hooks=telemetry.hooks)


def test_commands_become_spans_below_the_callers_own(telemetry: Telemetry, sandbox: Sandbox) -> None:
    with sandbox.create_session() as session:
        with telemetry.tracers.get_tracer("test").start_as_current_span("caller") as caller:
            session.shell("echo hello; exit 3")
        session.exec("sleep", ["1000"], timeout=0.05, kill_grace=0)
        with pytest.raises(PathError):
            session.exec("true", cwd="missing")
    failed, timed_out, refused = telemetry.spans("sandboxkit.exec")
    assert failed.parent.span_id == caller.get_span_context().span_id
    assert failed.attributes["process.executable.name"] == "sh"
    assert (failed.attributes["process.exit.code"], failed.attributes["sandboxkit.exec.stdout_bytes"]) == (3, 6)
    assert failed.status.status_code is StatusCode.UNSET, "a command that fails is a result"
    assert failed.attributes["sandboxkit.session.id"] == session.id
    assert timed_out.attributes["sandboxkit.exec.outcome"] == "timed_out"
    assert timed_out.status.status_code is StatusCode.ERROR
    assert timed_out.end_time - timed_out.start_time >= 0.05e9
    assert (refused.attributes["error.type"], refused.status.status_code) == ("path", StatusCode.ERROR)
    (created,), (destroyed,) = telemetry.spans("sandboxkit.create_session"), telemetry.spans("sandboxkit.destroy")
    assert created.end_time > created.start_time
    assert created.attributes["sandboxkit.image"] == "local"
    assert destroyed.attributes["sandboxkit.backend"] == "local"


def test_what_happens_is_counted(telemetry: Telemetry, sandbox: Sandbox) -> None:
    with sandbox.create_session() as session:
        for _ in range(3):
            session.exec("echo", ["x"]).check()
        found = telemetry.metrics()
        assert [point.value for point in found["sandboxkit.sessions"]] == [1]
        assert [point.value for point in found["sandboxkit.execs"]] == [3]
        assert [point.count for point in found["sandboxkit.exec.duration"]] == [3]
        assert {dict(p.attributes)["sandboxkit.stream"]: p.value for p in found["sandboxkit.exec.output"]} == {
            "stdout": 6,
            "stderr": 0,
        }
    found = telemetry.metrics()
    assert [point.value for point in found["sandboxkit.sessions"]] == [0]
    assert [point.count for point in found["sandboxkit.session.lifetime"]] == [1]
    assert [point.count for point in found["sandboxkit.session.create.duration"]] == [1]
    assert not any("session.id" in str(dict(point.attributes)) for points in found.values() for point in points)


def test_written_files_are_counted_by_size(telemetry: Telemetry) -> None:
    assert telemetry.hooks.on_file_write is not None
    telemetry.hooks.on_file_write(FileWritten(session_id="a", size=10, duration=0.1))
    telemetry.hooks.on_file_write(FileWritten(session_id="a", size=5, duration=0.1, error=ErrorCode.PATH))
    assert [point.value for point in telemetry.metrics()["sandboxkit.files.written"]] == [10]
    good, bad = telemetry.spans("sandboxkit.file_write")
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert good.attributes["sandboxkit.file.size"] == 10
