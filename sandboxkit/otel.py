"""Spans and metrics of sessions for OpenTelemetry (`pip install 'sandboxkit[otel]'`).

>>> from sandboxkit import Sandbox
>>> from sandboxkit.otel import otel_hooks
>>> sandbox = Sandbox("docker.io/library/python:3.12-slim", hooks=otel_hooks())

Spans: `sandboxkit.create_session`, `sandboxkit.exec` and `sandboxkit.destroy`, children of the caller's current span.
Metrics: counters `sandboxkit.execs`, `sandboxkit.exec.output` (bytes), `sandboxkit.files.written` (bytes), an up-down
counter `sandboxkit.sessions`, histograms `sandboxkit.exec.duration`, `sandboxkit.session.create.duration` and
`sandboxkit.session.lifetime` (seconds). Attributes are ids, names, codes and flags; session ids are on spans alone,
since each would be a time series of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue

from .errors import ErrorCode
from .hooks import ExecEnded, ExecStarted, FileWritten, Hooks, SessionCreated, SessionEnded
from .version import __version__

__all__ = ["otel_hooks"]


def otel_hooks(*, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> Hooks:
    """Hooks that report to these providers, or to the global ones."""
    observer = _Observer(tracer_provider, meter_provider)
    return Hooks(
        on_session_create=observer.session_created,
        on_exec_start=observer.exec_started,
        on_exec_end=observer.exec_ended,
        on_file_write=observer.file_written,
        on_destroy=observer.session_ended,
    )


class _Observer:
    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        self._tracer = trace.get_tracer("sandboxkit", __version__, tracer_provider)
        meter = metrics.get_meter("sandboxkit", __version__, meter_provider)
        self._sessions = meter.create_up_down_counter("sandboxkit.sessions", "{session}", "Sessions that live")
        self._created = meter.create_histogram("sandboxkit.session.create.duration", "s", "Time to make a session")
        self._lifetime = meter.create_histogram("sandboxkit.session.lifetime", "s", "Time a session lived")
        self._execs = meter.create_counter("sandboxkit.execs", "{command}", "Commands that ended")
        self._durations = meter.create_histogram("sandboxkit.exec.duration", "s", "Time a command took")
        self._output = meter.create_counter("sandboxkit.exec.output", "By", "Output of commands")
        self._files = meter.create_counter("sandboxkit.files.written", "By", "Content written to files")
        self._lock = threading.Lock()
        self._spans: dict[tuple[str, int], Span] = {}

    def session_created(self, event: SessionCreated) -> None:
        labels = {"sandboxkit.backend": event.backend, "sandboxkit.image": event.image}
        self._past("sandboxkit.create_session", event.duration, {**labels, "sandboxkit.session.id": event.session_id})
        self._sessions.add(1, {"sandboxkit.backend": event.backend})
        self._created.record(event.duration, labels)

    def exec_started(self, event: ExecStarted) -> None:
        attributes: dict[str, AttributeValue] = {
            "sandboxkit.session.id": event.session_id,
            "process.executable.name": event.command,
            "sandboxkit.exec.streamed": event.streamed,
        }
        span = self._tracer.start_span("sandboxkit.exec", kind=SpanKind.CLIENT, attributes=attributes)
        with self._lock:
            self._spans[event.session_id, event.exec_id] = span

    def exec_ended(self, event: ExecEnded) -> None:
        with self._lock:
            span = self._spans.pop((event.session_id, event.exec_id), None)
        outcome = _outcome(event)
        if span is not None:
            span.set_attributes(_attributes(event))
            if event.error is not None or outcome in ("timed_out", "oom_killed"):
                span.set_status(Status(StatusCode.ERROR, outcome))
            span.end()
        labels = {"process.executable.name": event.command, "sandboxkit.exec.outcome": outcome}
        self._execs.add(1, labels)
        self._durations.record(event.duration, labels)
        self._output.add(event.stdout_bytes, {"sandboxkit.stream": "stdout"})
        self._output.add(event.stderr_bytes, {"sandboxkit.stream": "stderr"})

    def file_written(self, event: FileWritten) -> None:
        attributes: dict[str, AttributeValue] = {
            "sandboxkit.session.id": event.session_id,
            "sandboxkit.file.size": event.size,
        }
        self._past("sandboxkit.file_write", event.duration, attributes, event.error)
        if event.error is None:
            self._files.add(event.size)

    def session_ended(self, event: SessionEnded) -> None:
        labels = {"sandboxkit.backend": event.backend}
        attributes: dict[str, AttributeValue] = {
            **labels,
            "sandboxkit.session.id": event.session_id,
            "sandboxkit.session.lifetime": event.lifetime,
        }
        self._past("sandboxkit.destroy", event.duration, attributes, event.error)
        if event.error is None:
            self._sessions.add(-1, labels)
            self._lifetime.record(event.lifetime, labels)

    def _past(
        self, name: str, duration: float, attributes: Mapping[str, AttributeValue], error: ErrorCode | None = None
    ) -> None:
        # What is told when it is over: a span from then until now.
        now = time.time_ns()
        span = self._tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=attributes, start_time=now - int(duration * 1e9)
        )
        if error is not None:
            span.set_attribute("error.type", error.value)
            span.set_status(Status(StatusCode.ERROR, error.value))
        span.end(now)


def _outcome(event: ExecEnded) -> str:
    if event.error is not None:
        return event.error.value
    for flag in ("timed_out", "aborted", "oom_killed"):
        if getattr(event, flag):
            return flag
    if event.exit_code is None:
        return "closed"
    return "signaled" if event.signal is not None else "exited"


def _attributes(event: ExecEnded) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "sandboxkit.exec.outcome": _outcome(event),
        "sandboxkit.exec.stdout_bytes": event.stdout_bytes,
        "sandboxkit.exec.stderr_bytes": event.stderr_bytes,
        "sandboxkit.exec.truncated": event.truncated,
        "sandboxkit.exec.cpu_seconds": event.cpu_seconds,
        "sandboxkit.exec.max_rss_bytes": event.max_rss_bytes,
    }
    if event.exit_code is not None:
        found["process.exit.code"] = event.exit_code
    if event.error is not None:
        found["error.type"] = event.error.value
    return found
