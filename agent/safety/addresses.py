"""Which addresses belong to the open internet."""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

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


def is_public_text(address: str) -> bool:
    """Do the same for the text of an address; what is none is not public."""
    try:
        return is_public(ipaddress.ip_address(address))
    except ValueError:
        return False
