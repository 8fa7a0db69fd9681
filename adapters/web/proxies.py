"""The client of a request: the connection's peer, or the client named by a trusted proxy.

An unknown proxy hides the client and makes the whole internet look like this machine, so its
requests are refused with the name of the missing setting.
"""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias

from aiohttp import web

from adapters.door import Requester
from adapters.web.platform import Networks
from adapters.web.requests import Refusal

IpAddress: TypeAlias = IPv4Address | IPv6Address

NAMES = frozenset({
    *("forwarded", "via", "x-forwarded", "forwarded-for", "x-original-forwarded-for"),
    *("x-real-ip", "true-client-ip", "cf-connecting-ip", "x-client-ip", "x-cluster-client-ip"),
    *("fastly-client-ip", "fly-client-ip", "x-envoy-external-address", "x-original-host"),
})
PREFIX = "x-forwarded-"
_PAIR = re.compile(r"""\s*(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;,\s]*)\s*""")
_PORT = re.compile(r"(?<=\]):\d+$|^(?P<v4>[0-9.]+):\d+$")

UNTRUSTED = (
    "This request came through a proxy ({header}) from {address}, which this Parley does not trust."
    " If that is your proxy, add its address to web.trusted_proxies in parley.yaml (as in"
    ' web: {{trusted_proxies: ["{address}"]}}) and start Parley again; docs/operations.md shows'
    " how to set up nginx, Caddy and Tailscale."
)


@dataclass(frozen=True, slots=True)
class Hop:
    """A client seen by a proxy; "" for unknown parts."""

    address: str = ""
    scheme: str = ""
    host: str = ""


def over_unix_socket(request: web.Request) -> bool:
    """Whether the request came through the socket file in PARLEY_HOME."""
    return connection_of(request).family == socket.AF_UNIX


def connection_of(request: web.Request) -> socket.socket:
    """Return a request's socket; raise a Refusal if it is closed."""
    if request.transport is None:
        raise Refusal(400, "connection_closed", "The connection is gone.")
    found: socket.socket = request.transport.get_extra_info("socket")
    return found


def caller_of(request: web.Request, trusted: Networks) -> Requester:
    """Return a request's client; refuse one forwarded by an untrusted proxy."""
    browser, host = request.headers.get("User-Agent", ""), request.headers.get("Host", "")
    header = forwarding_header(request)
    if over_unix_socket(request):
        if header is not None:
            raise Refusal(403, "proxy_refused", "The Unix socket is for this machine's user alone.")
        return Requester("", browser=browser)
    peer = _parsed(request.remote or "")
    if peer is None or not is_within(peer, trusted):
        if header is not None:
            text = UNTRUSTED.format(header=header, address=peer or "an unknown address")
            raise Refusal(403, "proxy_not_trusted", text)
        return Requester(str(peer or ""), host=host, browser=browser)
    if header is None:
        # A program on the proxy's machine, such as a browser.
        return Requester(str(peer), host=host, browser=browser)
    client, hop = furthest(peer, hops_of(request), trusted)
    return Requester(
        str(client),
        secure=hop.scheme.lower() in {"https", "wss"},
        host=hop.host or host,
        proxied=True,
        browser=browser,
    )


def forwarding_header(request: web.Request) -> str | None:
    """Return the name of the first header that a proxy adds, or None."""
    names = ((name, name.lower()) for name in request.headers)
    return next((name for name, low in names if low in NAMES or low.startswith(PREFIX)), None)


def hops_of(request: web.Request) -> list[Hop]:
    """Return the clients seen by the proxies, the nearest last.

    `X-Forwarded-For` takes precedence over `Forwarded` (RFC 7239): a proxy that sets the former may
    pass on the client's own value of the latter.
    """
    addresses = _listed(request, "X-Forwarded-For") or _listed(request, "X-Real-IP")
    if not addresses:
        elements = map(_PAIR.findall, _listed(request, "Forwarded"))
        pairs = [{name.lower(): value.strip('"') for name, value in each} for each in elements]
        return [Hop(*(each.get(name, "") for name in ("for", "proto", "host"))) for each in pairs]
    schemes, hosts = (
        _beside(addresses, _listed(request, f"X-Forwarded-{name}")) for name in ("Proto", "Host")
    )
    return [Hop(*each) for each in zip(addresses, schemes, hosts, strict=True)]


def _listed(request: web.Request, name: str) -> list[str]:
    values = ",".join(request.headers.getall(name, ()))
    return [each.strip() for each in values.split(",") if each.strip()]


def _beside(addresses: Sequence[str], values: Sequence[str]) -> Sequence[str]:
    """Return a value per address: its own if each proxy added one, else the last."""
    if len(values) == len(addresses):
        return values
    return [values[-1] if values else ""] * len(addresses)


def furthest(peer: IpAddress, hops: Sequence[Hop], trusted: Networks) -> tuple[IpAddress, Hop]:
    """Return the right-most address that is not a trusted proxy, with its hop.

    The client may have forged everything to its left.
    """
    address, found = peer, hops[-1] if hops else Hop()
    for hop in reversed(hops):
        seen = _parsed(hop.address)
        if seen is None:
            break
        address, found = seen, hop
        if not is_within(seen, trusted):
            break
    return address, found


def _parsed(text: str) -> IpAddress | None:
    """Parse an address without port and brackets, mapped IPv4 as IPv4; None if invalid."""
    plain = _PORT.sub(lambda found: found["v4"] or "", text.strip()).strip("[]")
    try:
        address = ip_address(plain)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_within(address: IpAddress, named: Networks) -> bool:
    """Whether an address is in one of these networks."""
    return any(address.version == each.version and address in each for each in named)
