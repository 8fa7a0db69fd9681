"""Which addresses and URLs `fetch_url` may ask: what everybody on the internet can ask.

Pure functions; the addresses of a name are looked up by `fetch.py`.
"""

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from yarl import URL

from agent.errors import ToolError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_URL_CHARS = 4_000
_PORTS = {80, 443}
"""Beside these only ports from 1024 on: no mail, no file service is spoken to by accident."""

# Source: IANA's registries of special-purpose addresses, 2025; the last one is not in them: the
# virtual machines' own service of a large cloud.
_PRIVATE_4 = [
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "168.63.129.16/32",
    )
]
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
"""All that is given out; loopback, local, multicast and unique local addresses lie outside."""
# Protocols (Teredo and ORCHID among them), documentation, 6to4.
_PRIVATE_6 = [
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Whether an address belongs to the open internet.

    One that holds an IPv4 address (mapped, NAT64) is judged by that; tunnels are not public.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _PRIVATE_4)
    if address.scope_id is not None:
        return False
    if address in _MAPPED or address in _NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _GLOBAL_6 and not any(address in network for network in _PRIVATE_6)


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that may be asked, as far as its text tells.

    Attributes:
        trusted: The operator has named its host: its addresses may be private.
    """

    url: URL
    host: str
    port: int
    trusted: bool


def target_of(url: URL, allow_hosts: Collection[str]) -> Target:
    """Return what a URL leads to.

    Args:
        url: As asked for, or where a page redirects to.
        allow_hosts: Hosts, or host:port, that the operator has named.

    Raises:
        ToolError: It is not allowed; the text says why.
    """
    host, port = (url.raw_host or "").rstrip(".").lower(), url.port
    if url.scheme not in {"http", "https"} or not host or not port:
        raise ToolError("only http and https URLs with a host can be fetched")
    if len(str(url)) > MAX_URL_CHARS:
        raise ToolError(f"the URL is longer than {MAX_URL_CHARS} characters")
    if url.raw_user is not None or url.raw_password is not None:
        raise ToolError("a URL with a user name or password is not fetched")
    trusted = bool({host, f"{host}:{port}"} & {each.lower() for each in allow_hosts})
    if not trusted and port not in _PORTS and port < 1024:
        raise ToolError(f"port {port} is not fetched from")
    return Target(url.with_fragment(None), host, port, trusted)


def parsed(text: str) -> URL:
    """Return a URL from what the model wrote.

    Raises:
        ToolError: It is none.
    """
    try:
        return URL(text.strip())
    except (ValueError, TypeError) as exc:
        raise ToolError("this is no URL") from exc


def checked(target: Target, addresses: Sequence[str]) -> Sequence[str]:
    """Return the addresses of a target's host if all of them may be asked.

    All, not some: a name that leads to both kinds is a trap.

    Raises:
        ToolError: There is none, or one is not public.
    """
    if not addresses:
        raise ToolError(f"the host {target.host} has no address")
    if not target.trusted and not all(_is_public_text(each) for each in addresses):
        raise ToolError(f"the host {target.host} is not on the open internet: it is not fetched")
    return addresses


def _is_public_text(address: str) -> bool:
    try:
        return is_public(ipaddress.ip_address(address))
    except ValueError:
        return False
