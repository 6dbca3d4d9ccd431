"""The forms of a Redis URL: which are accepted, which are refused with a cure, and what the connections do then."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path

import pytest

from sayso.infra.redis.client import address_of, connect
from sayso.infra.redis.cluster import ClusterClient, ClusterUrl
from sayso.infra.redis.connections import AutoPipeline
from sayso.infra.redis.url import RedisUrl


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("localhost:6379", "no URL of a Redis: write it as redis://host:6379/0"),
        ("http://:secret@db/0", "no URL of a Redis"),
        ("redis://:secret@db/shop", "'shop' is no number of a database"),
        ("redis://:secret@db:99999/0", "its port is no number from 1 to 65535"),
        (
            "redis://:secret@db/0?ssl_ca_certs=ca.pem",
            "has a parameter that redis:// does not take: 'ssl_ca_certs'",
        ),
        ("rediss://:secret@db/0?ssl_cert_reqs=maybe", "has a parameter with a wrong value"),
        ("redis://:se/secret@db/0", "has an @ after a / or ?: in a password and in a parameter"),
        ("redis://:se?secret@db/0", "has an @ after a / or ?"),
        ("redis://:s@e/secret@db:6379/0", "has an @ after a / or ?"),
        ("redis://:s@e?secret=secret@db/0", "has an @ after a / or ?"),
        ("redis://db/0?client_name=a@secret", "has an @ after a / or ?"),
        ("redis://:secret#secret@db/0", "has a # in it: write it as %23"),
        ("redis://:secret[@db/0", "has a login or an address that cannot be read"),
        ("redis://:secret\u2100@db/0", "has a login or an address that cannot be read"),
        ("redis://db/0?password=a&secret=1", "has an unknown or empty parameter after a password"),
        ("redis://db/0?password=a&secret", "write & in it as %26"),
        ("redis://:secret@db/0?db=one", "no URL of a Redis: Invalid value for 'db'"),
        ("redis://:secret@a:6379,b:6379/0", "names several hosts: write redis+sentinel://"),
        ("unix://secret", "names no socket"),
        ("unix://:se/cret@/run/redis.sock", "names no socket"),
        ("unix://run/redis.sock", "names no socket: write unix:///path, with three slashes"),
        ("unix:///run/redis#1.sock", "has a # in it: write it as %23"),
        ("redis+sentinel://:secret@a:26379,b:26379", "names no service of the Sentinels"),
        (
            "redis+sentinel://:secret@a:26379,b:26379/0?x=1",
            "has a parameter that redis:// does not take: 'x'",
        ),
        ("redis+sentinel://:secret@a:26379/shop/one", "'one' is no number of a database"),
        (
            "redis+sentinel://:secret@a:26379,b:port/shop",
            "'b:port' is not an address of a Sentinel",
        ),
        ("redis+sentinel://:secret@/shop", "'' is not an address of a Sentinel"),
        ("valkey://:secret@db/0", "begins with 'valkey': no URL of a Redis: write it as redis://"),
        ("redis://:secret@db:0/0", "its port is no number from 1 to 65535"),
        ("redis://:secret@[::1/0", "write an IPv6 address as [::1]:6379"),
        (
            "redis://:secret@db/0?decode_responses=false",
            "does not take: 'decode_responses'; it takes client_name, db",
        ),
        ("redis://:secret@db/0?credential_provider=x", "does not take: 'credential_provider'"),
        ("redis://:secret@db/0?socket_timeout=-1", "socket_timeout=-1: write a number above 0"),
        ("redis://:secret@db/0?socket_timeout=inf", "socket_timeout=inf: write a number above 0"),
        ("redis://:secret@db/0?db=-1", "db=-1: write 0 or a number above 0"),
        ("redis://:secret@db/\u00b2", "is no number of a database"),
        ("redis://:secret@db/0?protokoll", "does not take: 'protokoll'"),
        ("redis://:secret@db/0?client_name=a%20b", "client_name='a b': write it without spaces"),
        (
            "rediss://:secret@db/0?ssl_ca_certs=/no/file",
            "names a file that cannot be read: ssl_ca_certs=/no/file",
        ),
        ("redis+sentinel://s1:0/shop", "'s1:0' is not an address of a Sentinel"),
        (
            "redis+sentinel://a:secret@s1,a:secret@s2/shop",
            "has a login before more than one host: write it once",
        ),
        (
            "redis+sentinel://s1/shop?sentinel_tls=maybe&sentinel_password=secret",
            "has sentinel_tls='maybe'",
        ),
        (
            "redis+sentinel://s1/shop?sentinel_password=x#secret",
            "has a # in it",
        ),
        ("redis+sentinel://s1:26379,a:secret@s2:26379/shop/0", "has a comma before the @"),
        ("redis+sentinel://a:sec,ret@s1/shop", "and a comma in it as %2C"),
        (
            "unix:///run/redis.sock?socket_keepalive=1",
            "does not take: 'socket_keepalive'; it takes",
        ),
        ("redis://db/0?password=secret&", "write & in it as %26, and no & at the end"),
        ("redis://db/0?health_check_interval=-1", "write seconds, or 0 for never"),
        ("rediss://db/0?ssl_min_version=5", "ssl_min_version=5: write 771 for TLS 1.2"),
        ("redis+sentinel://:s@e/secret@s1/shop", "has an @ after a / or ?"),
        ("redis+sentinel://:secret\u2100@s1/shop", "has a login or an address that cannot be read"),
        ("redis+sentinel://:secret[@s1/shop", "has a login or an address that cannot be read"),
        ("redis+sentinel://s1/shop?sentinel_password=a&secret", "write & in it as %26"),
        ("redis+sentinel://s1/shop?protokoll", "does not take: 'protokoll'"),
        ("redis+sentinel://s1/shop?ssl_ca_path=/etc", "begin the URL with rediss"),
        (
            "redis+sentinel://s1/shop?sentinel_passwort=secret",
            "does not take: 'passwort'; it takes",
        ),
        (
            "redis+sentinel://s1/shop?sentinel_ssl_ca_certs=ca.pem",
            "has sentinel_ssl_ca_certs without TLS: add sentinel_tls=yes",
        ),
    ],
)
def test_malformed_url_is_refused_with_its_cure_and_without_its_password(
    url: str, problem: str
) -> None:
    """The message is shown in a terminal or a log."""
    with pytest.raises(ValueError, match=r"^(?!.*secret)") as refused:
        RedisUrl.parse(url)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+cluster://a:secret@n1,a:secret@n2", "has a login before more than one host"),
        (
            "redis+cluster://n1:6379,a:secret@n2:6379",
            "has a comma before the @: write the login once, before the first host",
        ),
        ("redis+cluster://n1?ssl_min_version=771", "is no parameter for a Redis Cluster"),
        ("redis+cluster://a:secret@n1?db=1", "names a database"),
        ("redis+cluster://a:secret@n1/1", "names a database"),
        ("redis+cluster://a:sec/ret@n1", "has an @ after a / or ?"),
        ("redis+cluster://a:s@e/secret@n1", "has an @ after a / or ?"),
        ("redis+cluster://a:secret\u2100@n1", "has a login or an address that cannot be read"),
        (
            "redis+cluster://a:secret@n1?ssl_ca_certs=ca.pem",
            "'ssl_ca_certs'; begin the URL with rediss in place of redis for TLS",
        ),
    ],
)
def test_malformed_url_of_a_cluster_is_refused_the_same_way(url: str, problem: str) -> None:
    """The message is shown in a terminal or a log."""
    with pytest.raises(ValueError, match=r"^(?!.*secret)") as refused:
        ClusterUrl.parse(url)
    assert problem in str(refused.value)


def test_comma_in_a_login_may_be_escaped() -> None:
    """Then it belongs to the password, before several hosts too."""
    sentinels = RedisUrl.parse("redis+sentinel://bot:a%2Cb@s1,s2/shop")
    cluster = ClusterUrl.parse("redis+cluster://bot:a%2Cb@n1,n2")
    assert sentinels.options["password"] == cluster.options["password"] == "a,b"
    assert len(cluster.addresses) == 2


def test_client_of_a_cluster_can_be_copied_before_it_is_connected() -> None:
    """Python asks a copy without attributes for special methods: that connects to nothing."""
    url = ClusterUrl.parse("redis+cluster://n1")
    client = ClusterClient(url, patient=True, answer_seconds=1.0)
    assert copy.copy(client).url is url


def test_url_of_sentinels_names_service_database_and_both_logins(tmp_path: Path) -> None:
    """The login before the hosts is for the data nodes."""
    ca = tmp_path / "ca.pem"
    ca.touch()
    url = f"rediss+sentinel://bot:p%40w@s1,[::1]:5000,s3:26380/shop/2?ssl_ca_certs={ca}&sentinel_password=quiet"
    redis = RedisUrl.parse(f"{url}&sentinel_tls=yes")
    options = {name: redis.options[name] for name in ("username", "password", "db", "ssl_ca_certs")}
    assert options == {"username": "bot", "password": "p@w", "db": 2, "ssl_ca_certs": str(ca)}
    assert redis.sentinel
    assert redis.sentinel.name == "shop"
    assert redis.sentinel.addresses == (("s1", 26379), ("::1", 5000), ("s3", 26380))
    assert redis.sentinel.options == {"password": "quiet", "ssl": True, "ssl_ca_certs": str(ca)}
    plain = RedisUrl.parse(
        f"redis+sentinel://s1/my%20shop?sentinel_tls=yes&sentinel_ssl_ca_certs={ca}"
    ).sentinel
    assert plain
    assert (plain.name, plain.options) == ("my shop", {"ssl": True, "ssl_ca_certs": str(ca)})
    assert [secret in repr(redis) for secret in ("p@w", "quiet")] == [False, False]


def test_address_of_a_service_names_the_service_and_no_node() -> None:
    """The data-loss guard stores watermarks by address, and compares the next primary with them after a failover."""
    assert address_of(connect("redis+sentinel://:secret@s2:1,s1/shop/0")) == "shop@s1:26379,s2:1"
    assert address_of(connect("redis://:secret@db:6380/0")) == "db:6380"


def test_socket_with_a_database_leads_threads_and_loops_to_that_database(redis_url: str) -> None:
    """`unix:///path?db=1` means the same for every kind of client."""
    url = f"{redis_url}?db=1"
    with connect(redis_url) as first, connect(url) as second:
        first.flushall()
        asyncio.run(_set_in_a_loop(url))
        assert (first.get("here"), second.get("here")) == (None, "1")
        first.flushall()


async def _set_in_a_loop(url: str) -> None:
    pipeline = AutoPipeline(url)
    await pipeline.execute(("SET", "here", "1"))
    await pipeline.close()
