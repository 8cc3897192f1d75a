from __future__ import annotations

import pytest
from pydantic import ValidationError

from tiered.config import RedisSettings, mask_secrets
from tiered.redis_url import Address, Kind, parse_redis_url


def test_a_single_servers_url_is_left_as_it_is() -> None:
    for text in ("redis://h:1/2", "rediss://me:pw@h?ssl_cert_reqs=none", "unix:///run/r.sock?db=1"):
        assert (parse_redis_url(text).kind, parse_redis_url(text).text) == (Kind.SINGLE, text)


def test_sentinels_name_a_service_and_its_servers_get_login_and_options() -> None:
    url = parse_redis_url("rediss+sentinel://me:p%40w@a,b:7,[::1]:8/kv?db=3&sentinel_password=s%26s&ssl_ca_certs=/ca")
    assert (url.kind, url.service) == (Kind.SENTINEL, "kv")
    assert url.seeds == (Address("a", 26379), Address("b", 7), Address("::1", 8))
    assert url.of_server(Address("::1", 9)) == "rediss://me:p%40w@[::1]:9?db=3&ssl_ca_certs=%2Fca"
    assert url.of_sentinel(Address("a", 1)) == "rediss://a:1?ssl_ca_certs=%2Fca&password=s%26s"


def test_a_cluster_names_some_of_its_servers() -> None:
    url = parse_redis_url("redis+cluster://me:pw@a:7000,b")
    assert (url.kind, url.seeds) == (Kind.CLUSTER, (Address("a", 7000), Address("b", 6379)))
    assert url.of_server(Address("c", 1)) == "redis://me:pw@c:1"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("http://h", "write redis://host:port"),
        ("h:6379", "write redis://host:port"),
        ("unix://", "unix:// needs the path"),
        ("redis+sentinel://a:1,b:2", "the name of the service follows the hosts"),
        ("redis+sentinel://a:1/kv/2", "the name of the service follows the hosts"),
        ("redis+sentinel://a:1/kv?db=x", "db=x is not the number of a database"),
        ("redis+cluster://a:1,,b:2", "'' is no host:port"),
        ("redis+cluster://", "'' is no host:port"),
        ("redis+cluster://a:x", "'a:x' is no host:port"),
        ("redis+cluster://a:70000", "'a:70000' is no host:port"),
        ("redis+cluster://a:0", "'a:0' is no host:port"),
        ("redis+cluster://a:1/3", "a Redis Cluster has database 0 only"),
        ("redis+cluster://a:1?db=3", "a Redis Cluster has database 0 only"),
        ("unix+cluster:///run/r.sock", "write redis://host:port"),
        ("rediss://h?ssl_validate_ocsp=true", "ssl_validate_ocsp is no option of TLS here; known: ssl_ca_certs,"),
        ("rediss+sentinel://h/kv?ssl_colour=1", "ssl_colour is no option of TLS here"),
        (
            "rediss://h?ssl_cert_reqs=maybe&ssl_cert_reqs=none",
            "ssl_cert_reqs=maybe is none of none, optional,",
        ),
        ("rediss://h?ssl_min_version=5", "ssl_min_version=5 is none of 771 (TLS 1.2), 772 (TLS 1.3)"),
        ("rediss://h?ssl_ca_data=%C3%A9", "ssl_ca_data is not PEM"),
        ("rediss+cluster://h?ssl_keyfile=/k", "ssl_keyfile needs ssl_certfile"),
        (f"redis://{'a' * 64}", "is no name of a host"),
        ("redis+cluster://a,b..c:1", "'b..c' is no name of a host"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        RedisSettings(url=text)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("partitions", [0, 3, 12, 257, 512])
def test_partitions_are_a_power_of_two_up_to_256(partitions: int) -> None:
    with pytest.raises(ValidationError):
        RedisSettings(partitions=partitions)


def test_no_password_of_a_url_is_shown() -> None:
    text = "rediss+sentinel://me:geheim@a:1,b:2/kv?sentinel_password=auch&db=1"
    assert mask_secrets("redis.url", text) == "rediss+sentinel://***@a:1,b:2/kv?sentinel_password=***&db=1"
