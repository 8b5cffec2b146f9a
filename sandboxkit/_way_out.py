"""From a session's Network to its way out, where it has a list of destinations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _validate as check
from ._network import PROXY_PORT, Network, NetworkMode, proxy_environment
from .errors import UnsupportedError

if TYPE_CHECKING:
    from ._relay import Relay

__all__ = ["check_extra", "chosen_network", "open_way_out"]


def check_extra(network: Network) -> None:
    """UnsupportedError where a list needs what is not installed; before anything is made."""
    if not network.is_guarded:
        return
    try:
        import h11  # noqa: F401
    except ImportError as missing:
        raise UnsupportedError(
            "Network.allow needs h11, which is not installed: pip install 'sandboxkit[egress]'."
        ) from missing


def chosen_network(made_with: Network, given: Network | None) -> Network:
    """For a session that is there already: its own, or what its new user gives. ConfigError for another kind."""
    if given is None:
        return made_with
    if not isinstance(given, Network) or given.mode is not NetworkMode.NONE:
        check.fail("network", given, "Network.allow([...]), Network.none(), or None for the session's own")
    if made_with.mode is not NetworkMode.NONE:
        check.fail("network", given, "None: this session was made with a network of the engine's")
    return given


def open_way_out(relay: Relay, network: Network, *, is_told: bool) -> dict[str, str]:
    """Let the proxy listen inside, if there is a list; what commands have to be told of it.

    `is_told`: the container's own environment names the usual port. It ends with the relay's session.
    """
    if not network.is_guarded:
        return {}
    from .egress._egress import Egress

    port = Egress(relay, network).start()
    return {} if is_told and port == PROXY_PORT else proxy_environment(port)
