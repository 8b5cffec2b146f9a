"""From what an SDK raises to the errors of sandboxkit: one table an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from ..errors import EngineError, SandboxError

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
    cause: BaseException


@attrs.frozen
class ErrorTable:
    """`statuses` decides where the engine answered, by operation first; `exceptions` where it did not, first match wins."""

    engine: str
    statuses: Mapping[int, Rule]
    operations: Mapping[tuple[str, int], Rule]
    exceptions: Sequence[tuple[type[BaseException], Rule]]

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
        details: dict[str, object] = {"operation": operation}
        if failure.status is not None:
            details["status"] = failure.status
            details["reason"] = reason
            message = f"{self.engine} refused to {what}: {reason} (status {failure.status}){advice}"
        else:
            details["reason"] = reason
            message = f"{self.engine} could not be asked to {what}: {reason}{advice}"
        return rule.error(message, retryable=rule.retryable, details=details)
