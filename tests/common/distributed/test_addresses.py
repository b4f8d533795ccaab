"""Addresses at which ranks reach each other. Ranks that do: `end_to_end/test_model_parallel.py`."""

import platform
from dataclasses import replace

import pytest
from fake_ranks import alone

from common.distributed.addresses import interface_of, own_address
from common.errors import UserError


def beside(host):
    """Return a rank that has another one on a host of this name."""
    own = platform.node()
    return replace(alone(), allgather=lambda value: [own, host] if value == own else [value, value])


def test_the_address_is_that_on_the_way_to_the_other_host():
    assert own_address(beside("localhost")) == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"


def test_a_host_that_is_not_known_is_one_line():
    with pytest.raises(UserError, match=r"does not know the address of nosuch\.invalid\. Received"):
        own_address(beside("nosuch.invalid"))
