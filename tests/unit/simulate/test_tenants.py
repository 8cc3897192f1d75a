"""The tenants file: what it promises whom, how it deals a trace's requests, and a sentence for what is wrong."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.simulate.builders import request
from tiered.errors import ConfigError
from tiered.simulate.tenants import NAMELESS, read_tenants
from tiered.tenancy.policy import DEFAULT_TENANT
from tiered.types import TenantId

REQUESTS = [request(i, tool=i % 5, who=f"w{i % 3}") for i in range(60)] + [request(99, tool=7, who="w0")]


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(text)
    return path


def test_a_field_names_the_tenant_and_its_absence_is_a_tenant_too(tmp_path: Path) -> None:
    tenants = read_tenants(toml(tmp_path, 'field = "who"'), REQUESTS)
    assert tenants.of(REQUESTS[4]) == "w1"
    assert tenants.of(request(1)) == NAMELESS


def test_bounds_are_blocks_or_shares_of_the_pool(tmp_path: Path) -> None:
    file = """
        field = "who"
        [default]
        hot_reserved = 7
        [tenants.w1]
        hot_reserved = "12.5%"
        hot_limit = "50%"
        weight = 2.5
        over_quota = "refuse"
        sharing = "group:lab"
    """
    tenants = read_tenants(toml(tmp_path, file), REQUESTS)
    policies = tenants.policies(80)
    assert (policies[DEFAULT_TENANT].hot_reserved_blocks, policies[DEFAULT_TENANT].hot_limit_blocks) == (7, None)
    own = policies[TenantId("w1")]
    assert (own.hot_reserved_blocks, own.hot_limit_blocks, own.weight, own.over_quota) == (10, 40, 2.5, "refuse")
    assert (tenants.label(TenantId("w1")), tenants.label(TenantId("w2"))) == ("group:lab", "tenant:w2")


def test_json_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "tenants.json"
    path.write_text(json.dumps({"field": "who", "tenants": {"w0": {"hot_limit": 3}}}))
    assert read_tenants(path, REQUESTS).policies(9)[TenantId("w0")].hot_limit_blocks == 3


def test_more_reserved_than_there_is_is_refused_with_the_sum(tmp_path: Path) -> None:
    # w0 and w2 live under the default, w1 has its own: 40 + 2 * 35 of 100.
    file = 'field = "who"\n[default]\nhot_reserved = 35\n[tenants.w1]\nhot_reserved = 40'
    tenants = read_tenants(toml(tmp_path, file), REQUESTS)
    with pytest.raises(ConfigError, match=r"hot_reserved adds up to 110 blocks over 3 tenants, more than the 100 "):
        tenants.policies(100)
    assert tenants.policies(110)


def test_the_rule_most_gives_the_busiest_values_a_tenant_each(tmp_path: Path) -> None:
    tenants = read_tenants(toml(tmp_path, 'deal = 3\nby = "tool"\nrule = "most"'), REQUESTS)
    by_tool = {served.fields["tool"]: tenants.of(served) for served in REQUESTS}
    # All but the last have 12 requests: as strings in order, the first two are alone.
    assert by_tool == {0: "tenant-1", 1: "tenant-2", 2: "tenant-3", 3: "tenant-3", 4: "tenant-3", 7: "tenant-3"}


def test_the_rule_hash_is_stable_and_another_seed_deals_anew(tmp_path: Path) -> None:
    many = [request(i, session=f"s{i}") for i in range(400)]
    dealt = {}
    for seed in (0, 1):
        tenants = read_tenants(toml(tmp_path, f'deal = 4\nby = "session"\nseed = {seed}'), many)
        dealt[seed] = [tenants.of(served) for served in many]
    again = read_tenants(toml(tmp_path, 'deal = 4\nby = "session"'), many[::-1])
    assert [again.of(served) for served in many] == dealt[0] != dealt[1]
    assert all(60 <= n <= 140 for n in Counter(dealt[0]).values())
    assert dealt[0][:4] == ["tenant-2", "tenant-3", "tenant-4", "tenant-2"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "give field, which names a request's tenant, or deal and by"),
        ('field = "who"\ndeal = 2\nby = "tool"', "give field, which names"),
        ("deal = 2", "deal and by go together"),
        ('field = "who"\nby = "tool"', "deal and by go together"),
        ('deal = 0\nby = "tool"', "deal: Input should be greater than or equal to 1"),
        ('field = "nobody"', "field: no request of the trace has a field 'nobody'; the first one has tool, who"),
        ('field = "who"\ncolour = 1', "colour: is unknown"),
        ('field = "who"\n[tenants.w0]\nhot_quota = 1', "tenants.w0.hot_quota: is unknown"),
        ('field = "who"\n[tenants."a b"]\nweight = 1', "a tenant name is 1 to 64 of"),
        ('field = "who"\n[default]\nweight = 0', "default.weight: Input should be greater than 0"),
        ('field = "who"\n[default]\nhot_limit = "half"', "default.hot_limit"),
        ('field = "who"\n[default]\nhot_limit = -1', "default.hot_limit"),
        ('field = "who"\nrule = "fair"', "rule: Input should be 'hash' or 'most'"),
        ("field = ", "write TOML, or JSON in a .json file"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_key(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_tenants(toml(tmp_path, text), REQUESTS)
    assert sentence in str(caught.value)
    assert str(tmp_path / "tenants.toml") in str(caught.value)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("hot_reserved = 5\nhot_limit = 4", r"w0: hot_reserved_blocks \(5\) is above hot_limit_blocks \(4\)"),
        ('sharing = "everyone"', "w0: sharing: sharing is private, public, or group"),
    ],
)
def test_bounds_that_no_policy_may_have_are_refused_with_the_tenant(
    tmp_path: Path, table: str, sentence: str
) -> None:
    tenants = read_tenants(toml(tmp_path, f'field = "who"\n[tenants.w0]\n{table}'), REQUESTS)
    with pytest.raises(ConfigError, match=sentence):
        tenants.policies(100)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--tenants: cannot read .*missing.toml: No such file"):
        read_tenants(tmp_path / "missing.toml", REQUESTS)
