"""Which addresses and URLs may be asked."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ToolError
from agent.tools.sandbox.addresses import checked, is_public, parsed, target_of

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


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://a.example/", "file:///etc/passwd", "gopher://a.example", "a.example", "//a"),
        *("http://", "http://user@a.example/", "http://u:p@a.example/", "http://:x@a.example/"),
        *("http://a.example:22/", "http://a.example:25", "https://a.example:0/", ""),
        *("http://a.example:110/", "https://a.example:993/", "http://a.example:1023/"),
        *("http://a.example:99999/", "http://[::1", "http://a.example/" + "x" * 4_000),
    ],
)
def test_urls_that_are_not_fetched(url: str) -> None:
    """Other schemes, credentials, services beside the web, what is no URL."""
    with pytest.raises(ToolError):
        target_of(parsed(url), ())


@pytest.mark.parametrize(
    ("url", "trusted"),
    [
        ("http://wiki.local/", True),
        ("https://WIKI.local./x", True),
        ("http://wiki.local.example/", False),
        ("http://10.0.0.1:22/", True),
        ("http://10.0.0.1:8080/", False),
    ],
)
def test_the_operator_names_private_hosts(url: str, *, trusted: bool) -> None:
    """Exactly: a host, or a host with its port."""
    assert target_of(parsed(url), ("Wiki.local", "10.0.0.1:22")).trusted == trusted


def test_one_private_address_is_enough_to_refuse() -> None:
    """A name with both kinds is a trap; what is no address is none."""
    target = target_of(parsed("http://a.example/"), ())
    assert checked(target, ["8.8.8.8"]) == ["8.8.8.8"]
    for addresses in ([], ["8.8.8.8", "10.0.0.1"], ["fe80::1%eth0"], ["nonsense"]):
        with pytest.raises(ToolError):
            checked(target, addresses)


def test_a_named_host_may_have_private_addresses() -> None:
    """Its operator said so."""
    target = target_of(parsed("http://a.example/"), ("a.example",))
    assert checked(target, ["127.0.0.1"]) == ["127.0.0.1"]
