"""Broken on purpose, see `mutants`: the ports and the guarded way out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from sandboxkit import EgressEvent
from sandboxkit._hosts import Destination
from sandboxkit._port_watch import PortWatch
from sandboxkit.egress import _policy, _proxies
from sandboxkit.egress._egress import Egress
from sandboxkit.egress._http import RequestHead
from sandboxkit.egress._policy import Decision, Meter, Policy

from .mutants import noticed_by


@noticed_by(
    "test_a_name_that_is_not_on_the_list_is_denied",
    "test_a_port_that_is_not_on_the_list_is_denied",
    "test_a_redirect_is_judged_anew",
)
def every_destination_is_on_the_list(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Policy, "decide", lambda self, target: Decision(private=True))


@noticed_by("test_a_name_that_leads_to_this_host_is_denied")
def no_address_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_policy, "why_refused", lambda address, private: None)


@noticed_by("test_a_name_that_changes_its_address_gains_nothing")
def only_the_first_address_ever_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    judged: dict[str, Any] = {}
    original = Policy.reachable

    def reachable(target: Any, addresses: Any, *, private: bool) -> Any:
        return judged.setdefault(target.host, original(target, addresses, private=private))

    patch.setattr(Policy, "reachable", staticmethod(reachable))


@noticed_by("test_a_wildcard_is_for_subdomains")
def a_wildcard_is_for_its_parent_too(patch: pytest.MonkeyPatch) -> None:
    original = Destination.matches
    patch.setattr(
        Destination, "matches", lambda self, host, port: original(self, host, port) or original(self, f"x.{host}", port)
    )


@noticed_by("test_a_connection_is_cut_at_its_bytes", "test_a_session_is_cut_at_its_bytes")
def bytes_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Meter, "spend", lambda self, size: size)


@noticed_by("test_a_name_on_the_list_is_reached")
def the_audit_is_told_twice(patch: pytest.MonkeyPatch) -> None:
    original = Egress.tell

    def tell(self: Egress, event: EgressEvent) -> None:
        original(self, event)
        original(self, event)

    patch.setattr(Egress, "tell", tell)


@noticed_by("test_a_header_of_the_hop_goes_no_further")
def all_headers_are_sent_on(patch: pytest.MonkeyPatch) -> None:
    def everything(head: RequestHead, host: str, credentials: Mapping[str, str]) -> Any:
        return head.headers

    patch.setattr(_proxies, "request_headers", everything)


@noticed_by("test_programs_are_told_of_the_proxy")
def nobody_is_told_of_the_proxy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sandboxkit.sandbox.proxy_environment", lambda port: {})
    patch.setattr("sandboxkit._way_out.proxy_environment", lambda port: {})


@noticed_by("test_a_wait_ends_within_20_ms_of_the_listen")
def waiting_takes_its_time(patch: pytest.MonkeyPatch) -> None:
    original = PortWatch._first

    def slow(self: PortWatch, *args: Any) -> Any:
        found = original(self, *args)
        time.sleep(0.1)
        return found

    patch.setattr(PortWatch, "_first", slow)
