"""Which addresses belong to the open internet."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.safety.addresses import is_public, is_public_text

PRIVATE = [
    *("0.0.0.1", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254"),
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1"),
    *("192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.7"),
    *("203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("168.63.129.16", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1"),
    *("2001:0:7f00:1::", "2001:db8::1", "2001:10::1", "2002:7f00:1::", "2002:808:808::1"),
    *("3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1"),
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_known(address: str) -> None:
    """Loopback, local, reserved, multicast, tunnels, clouds' own services; in IPv6 too."""
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", [*PUBLIC, "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_known(address: str) -> None:
    """Also where IPv6 holds a public IPv4 address."""
    assert is_public(ipaddress.ip_address(address))


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_nothing_that_python_calls_private_is_public(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """A second opinion; ours is the stricter one."""
    mapped = getattr(address, "ipv4_mapped", None)
    if (mapped or address).is_private or address.is_multicast or address.is_loopback:
        assert not is_public(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_ipv6(address: ipaddress.IPv4Address) -> None:
    """Mapped and NAT64 forms give no way around."""
    for prefix in (0xFFFF << 32, 0x64FF9B << 96):
        assert is_public(ipaddress.IPv6Address(prefix | int(address))) == is_public(address)


def test_a_zone_is_never_public() -> None:
    """It names an interface of this machine."""
    assert not is_public(ipaddress.ip_address("2606:4700::1111%eth0"))


def test_what_is_no_address_is_not_public() -> None:
    """A resolver that answers nonsense opens nothing."""
    assert not is_public_text("nonsense")
    assert is_public_text("93.184.216.34")
