"""Which IP addresses are on the public internet: the guard against server-side request forgery.

A URL from a stranger must not make this process call a server of the private network, such as one
that gives out credentials of the machine.
"""

from __future__ import annotations

import ipaddress

#: The networks of IANA's registries of special-purpose addresses. Those that the registries call
#: globally reachable are included, since no website is there. The table is here because that of
#: `ipaddress` differs between patch releases of Python.
_SPECIAL_IPV4 = tuple(
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
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        # Azure's wire server, which only Azure's own machines reach. It is in no registry. The
        # metadata servers of other clouds are in the networks above, most at 169.254.169.254.
        "168.63.129.16/32",
    )
)
#: All of the public internet in IPv6. Outside are loopback, IPv4-mapped and IPv4-compatible
#: addresses, the standard prefix of NAT64, discard-only, segment routing, unique local, link-local,
#: site-local and multicast.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
#: What is special inside _GLOBAL_UNICAST: protocol assignments with Teredo, ORCHID and benchmarks;
#: two networks for documentation; 6to4; AS112.
_SPECIAL_IPV6 = tuple(
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
#: An ISATAP interface id (RFC 5214) is the last 64 bits of an IPv6 address. Its upper 32 bits are
#: this number; its lower 32 bits are the IPv4 address to which a tunnel leads.
_ISATAP = 0x00005EFE
#: Bits of the upper 32 that may be set as well: one tells a unique id from a local one, the other
#: marks a group.
_ISATAP_FLAGS = 0x03000000


def is_public(address: str) -> bool:
    """Return whether an IP address is on the public internet.

    An IPv6 address that embeds an IPv4 address is not: a gateway would lead to that one. The
    exception is a NAT64 gateway whose operator chose a prefix in the public internet. Nothing in
    the address shows it, so it counts as public.

    Raises ValueError for a text that is no IP address.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in network for network in _SPECIAL_IPV4)
    if ip not in _GLOBAL_UNICAST or any(ip in network for network in _SPECIAL_IPV6):
        return False
    upper_half_of_id = (int(ip) >> 32) & 0xFFFFFFFF
    return upper_half_of_id & ~_ISATAP_FLAGS != _ISATAP
