"""The web chat's door: addresses that limits count as one."""

import pytest

from adapters.door import network_of


@pytest.mark.parametrize(
    ("address", "counted_as"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::1"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_is_one_address(address: str, counted_as: str) -> None:
    """Its owner may choose the remaining bits."""
    assert network_of(address) == counted_as
