"""Tenants' tokens in Redis: made once, never stored, ended by time or by hand, the server's clock deciding."""

from __future__ import annotations

import json

import pytest
import redis

from tests.support.redis_server import eventually
from tiered.cluster.access import TOKENS_PER_TENANT_MAX, AccessTokens, digest_of, looks_like_token
from tiered.cluster.keys import Keys
from tiered.types import TenantId

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


@pytest.fixture
def tokens(redis_client: redis.Redis, redis_keys: Keys) -> AccessTokens:
    return AccessTokens(redis_client, redis_keys)


def make(tokens: AccessTokens, tenant: TenantId = ACME, *, label: str = "", expires_s: float | None = None) -> str:
    made = tokens.create(tenant, label=label, expires_s=expires_s)
    assert made is not None
    return made[0]


def test_only_the_digest_of_a_token_is_stored(
    tokens: AccessTokens, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    token = make(tokens, label="grafana")
    stored = redis_client.hgetall(redis_keys.access_tokens())
    assert digest_of(token).encode() in stored
    assert token not in str(stored)
    grant = json.loads(stored[digest_of(token).encode()])
    assert (grant["tenant"], grant["label"]) == ("acme", "grafana")
    assert "expires_ms" not in grant


def test_every_token_is_another_and_has_the_form_that_is_looked_up(tokens: AccessTokens) -> None:
    made = {make(tokens) for _ in range(20)}
    assert len(made) == 20
    assert all(looks_like_token(token) for token in made)


@pytest.mark.parametrize("text", ["", "tiered_", "s3cret", "tiered_" + "x" * 42, "tiered-" + "x" * 43, "x" * 100_000])
def test_what_cannot_be_a_token_is_known_by_its_form(text: str) -> None:
    assert not looks_like_token(text)


@pytest.mark.parametrize("label", ["", "o'Neil's \"board\" \\ ü 漢 🧊", "x" * 100])
def test_a_label_comes_back_as_it_was(tokens: AccessTokens, label: str) -> None:
    make(tokens, label=label)
    assert [grant.label for grant in tokens.list(ACME)] == [label]


def test_each_tenant_has_its_own_list(tokens: AccessTokens) -> None:
    make(tokens, ACME, label="a")
    make(tokens, GLOBEX, label="g")
    assert [grant.label for grant in tokens.list(ACME)] == ["a"]
    assert tokens.list(TenantId("nobody")) == []


def test_a_token_ends_when_the_servers_clock_says_so(tokens: AccessTokens) -> None:
    make(tokens, expires_s=0.05)
    assert tokens.list(ACME)[0].expires_ms is not None
    eventually(lambda: tokens.list(ACME) == [], within_s=5.0)


def test_a_new_token_clears_away_what_has_expired(
    tokens: AccessTokens, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    gone = make(tokens, expires_s=0.001)
    eventually(lambda: tokens.list(ACME) == [], within_s=5.0)
    make(tokens)
    assert not redis_client.hexists(redis_keys.access_tokens(), digest_of(gone))


def test_a_tenant_revokes_nothing_of_another(tokens: AccessTokens) -> None:
    make(tokens, ACME)
    token_id = tokens.list(ACME)[0].id
    assert not tokens.revoke(GLOBEX, token_id)
    assert not tokens.revoke(ACME, "")
    assert tokens.revoke(ACME, token_id)
    assert not tokens.revoke(ACME, token_id)
    assert tokens.list(ACME) == []


def test_all_of_one_tenant_end_together(tokens: AccessTokens) -> None:
    for tenant in (ACME, ACME, GLOBEX):
        make(tokens, tenant)
    assert tokens.revoke_all(ACME) == 2
    assert (len(tokens.list(ACME)), len(tokens.list(GLOBEX))) == (0, 1)


def test_a_tenant_has_so_many_and_no_more(tokens: AccessTokens) -> None:
    for _ in range(TOKENS_PER_TENANT_MAX):
        make(tokens)
    assert tokens.create(ACME) is None
    assert tokens.create(GLOBEX) is not None
    tokens.revoke(ACME, tokens.list(ACME)[0].id)
    assert tokens.create(ACME) is not None


def test_what_is_known_is_not_sent_again(tokens: AccessTokens) -> None:
    make(tokens)
    first = tokens.read()
    again = tokens.read(first)
    assert again.by_digest is first.by_digest
    assert again.server_ms >= first.server_ms
    make(tokens, GLOBEX)
    assert len(tokens.read(again).by_digest) == 2


def test_a_redis_that_lost_everything_lost_the_tokens_too(
    tokens: AccessTokens, redis_client: redis.Redis, redis_keys: Keys
) -> None:
    make(tokens)
    known = tokens.read()
    redis_client.delete(redis_keys.access_tokens())
    assert tokens.read(known).by_digest == {}


def test_nothing_known_and_nothing_there_is_no_surprise(tokens: AccessTokens) -> None:
    assert tokens.read().by_digest == {}
