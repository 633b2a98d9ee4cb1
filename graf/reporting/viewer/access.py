"""Checks which pages may use the viewer: only its own, opened under a name of this machine.

Browsers let any page open a websocket to any address, 127.0.0.1 included, and only name the page in the header Origin. The
header Host is the name under which the page knows the server. A page whose own name was pointed at this machine (DNS
rebinding) has a matching Origin, but a Host that is not ours; a numeric address cannot be pointed elsewhere.
"""

import ipaddress
import logging
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

log = logging.getLogger("graf")

PORTS = {"http": 80, "https": 443}
MAX_LOGGED = 20  # refusals: a page can try without end


class Access:
    """The names of a viewer, and the pages that may use it."""

    def __init__(self, host: str, allowed: Sequence[str] = ()):
        """host: the address that it listens on; allowed: further names of this machine, or of a proxy before it."""
        self.host = host
        self._allowed = {name.lower() for name in allowed}
        self._names = {"localhost", socket.gethostname().lower(), host.lower(), *self._allowed}
        self._logged: set[str] = set()

    def refusal(self, hosts: Sequence[str], origins: Sequence[str]) -> str:
        """The reason to refuse a request with these headers Host and Origin, "" to allow it. Each reason is logged once.

        Programs other than browsers send no Origin, and could send any.
        """
        reason = self._reason(hosts, origins)
        if reason and reason not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(reason)
            log.warning("%s", reason)
        return reason

    def _reason(self, hosts: Sequence[str], origins: Sequence[str]) -> str:
        if len(hosts) != 1 or len(origins) > 1:
            return "refused: a request has one header Host, and at most one Origin"
        host, origin = hosts[0], (origins[0] if origins else None)
        name, _ = name_and_port(f"http://{host}")
        if not (name in self._names or is_address(name)):
            cure = f"; if it should be, start the viewer with --allow_host {name}" if name else ""
            return f"refused: {host!a} is no name of this viewer{cure}"
        if origin is None or name_and_port(origin)[0] in self._allowed:
            return ""
        page = name_and_port(origin)
        if not page[0] or page != name_and_port(f"{origin.partition('://')[0]}://{host}"):
            cure = f"; if it should, start the viewer with --allow_host {page[0]}" if page[0] else ""
            return f"refused: a page of {origin!a} may not use the viewer at {host!a}{cure}"
        return ""


def name_and_port(url: str) -> tuple[str, int | None]:
    """Host name, in lower case, and port of an address such as http://127.0.0.1:8080; ("", None) if it is not one."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return "", None


def is_address(name: str) -> bool:
    """Whether a host name is a numeric IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
