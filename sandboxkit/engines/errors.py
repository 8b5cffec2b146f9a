"""From what an SDK raises to the errors of sandboxkit: one table an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs

from sandboxkit.errors import EngineError, SandboxError

__all__ = ["ErrorTable", "Failure", "Rule"]


@attrs.frozen
class Rule:
    """The error that a status or an exception becomes. `advice` is what the user may do next."""

    error: type[SandboxError] = EngineError
    retryable: bool = False
    advice: str = ""


@attrs.frozen
class Failure:
    """What an exception of the SDK says: the status where the engine answered, and the reason in its words."""

    status: int | None
    reason: str
    cause: Exception


@attrs.frozen
class ErrorTable:
    """`operations`, then `statuses` decide where the engine answered, `exceptions` where it did not (first match)."""

    engine: str
    statuses: Mapping[int, Rule]
    operations: Mapping[tuple[str, int], Rule]
    exceptions: Sequence[tuple[type[Exception], Rule]]
    failure_of: Callable[[Exception], Failure]

    @contextmanager
    def translated(self, operation: str, subject: str = "") -> Iterator[None]:
        """Raise what the block raises as an error of sandboxkit: `operation` could not be done to `subject`."""
        try:
            yield
        except SandboxError:  # ConfigError is a ValueError, too
            raise
        except tuple(kind for kind, _ in self.exceptions) as error:
            raise self.error(operation, self.failure_of(error), subject) from error

    def rule(self, operation: str, failure: Failure) -> Rule:
        """The rule for a failure; a status or exception that is in no row is an EngineError."""
        if failure.status is not None:
            found = self.operations.get((operation, failure.status)) or self.statuses.get(failure.status)
            return found or Rule()
        return next((rule for kind, rule in self.exceptions if isinstance(failure.cause, kind)), Rule())

    def error(self, operation: str, failure: Failure, subject: str = "") -> SandboxError:
        """The error to raise."""
        rule = self.rule(operation, failure)
        what = f"{operation} {subject}".strip()
        reason = failure.reason.strip() or type(failure.cause).__name__
        advice = f"; {rule.advice}" if rule.advice else ""
        details: dict[str, object] = {"operation": operation, "reason": reason}
        if failure.status is not None:
            details["status"] = failure.status
            message = f"{self.engine} refused to {what}: {reason} (status {failure.status}){advice}"
        else:
            message = f"{self.engine} could not be asked to {what}: {reason}{advice}"
        return rule.error(message, retryable=rule.retryable, details=details)
