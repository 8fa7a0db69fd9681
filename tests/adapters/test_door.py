"""The port of the web chat's door: what counts as one address."""

import pytest

from adapters.door import network_of


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:0db8:0001:0002"),
        ("2001:db8:1:2::9", "2001:0db8:0001:0002"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("", ""),
    ],
)
def test_a_household_is_one_address(address: str, network: str) -> None:
    """With IPv6 it has a network of its own."""
    assert network_of(address) == network
