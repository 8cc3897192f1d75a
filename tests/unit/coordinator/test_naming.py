"""What a prompt's blocks are called: by the engines that are attached, under the policy in force."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.view.naming import NAMED_BLOCKS_MAX, UnknownModel, name_blocks, policy_of, scopes_of_model
from coordinator.view.snapshot import ClusterView, Readings, assemble
from tests.support.content import SCOPE, hashes_of, prompt
from tests.unit.coordinator.builders import node_view
from tiered.hashing.chain import chain_hashes
from tiered.hashing.scope import ModelScope, encode_scope, scope_id
from tiered.tenancy.policy import TenantPolicy
from tiered.types import NodeStats, NodeView, TenantId

OTHER = msgspec.structs.replace(SCOPE, model="other")
ACME = TenantId("acme")


def node(name: str, *scopes: ModelScope, alive: bool = True, text: str = "") -> NodeView:
    texts = (*map(encode_scope, scopes), *([text] if text else []))
    return node_view(name, alive=alive, stats=NodeStats(engines=len(texts), scopes=texts))


def view(*nodes: NodeView, policies: tuple[TenantPolicy, ...] = ()) -> ClusterView:
    by_name = {TenantId(policy.tenant): policy for policy in policies}
    return assemble(Readings(nodes=nodes, policies=by_name), taken_at=0.0)


def test_blocks_are_named_as_the_engines_beside_the_workers_name_them() -> None:
    tokens = prompt(1, 3)
    (named,) = name_blocks(view(node("a", SCOPE), node("b", SCOPE)), TenantPolicy(tenant="acme"), [*tokens, 1, 2])
    assert named.scope == SCOPE
    assert list(named.hashes) == hashes_of(tokens, tenant=ACME)


def test_tenants_of_one_group_have_the_same_names_and_others_have_not() -> None:
    there = view(node("a", SCOPE))
    red, blue = (TenantPolicy(tenant=name, sharing="group:colours") for name in ("red", "blue"))
    tokens = prompt(1, 2)
    assert name_blocks(there, red, tokens) == name_blocks(there, blue, tokens)
    assert name_blocks(there, red, tokens) != name_blocks(there, TenantPolicy(tenant="red"), tokens)


def test_a_model_has_names_for_each_of_its_ranks() -> None:
    ranks = [msgspec.structs.replace(SCOPE, tp_size=2, tp_rank=rank) for rank in range(2)]
    named = name_blocks(view(node("a", *ranks)), TenantPolicy(tenant="acme"), prompt(1, 1))
    assert [each.scope.tp_rank for each in named] == [0, 1]
    assert named[0].hashes != named[1].hashes


def test_which_model_is_meant_must_be_said_where_there_are_several() -> None:
    there = view(node("a", SCOPE), node("b", OTHER))
    assert scopes_of_model(there, "other") == (OTHER,)
    with pytest.raises(UnknownModel, match="several models are attached: name one") as caught:
        scopes_of_model(there)
    assert caught.value.models == ("other", "test")
    assert caught.value.with_models.endswith("attached: other, test")
    with pytest.raises(UnknownModel, match="no engine of a model 'tset'"):
        scopes_of_model(there, "tset")


def test_engines_of_a_node_that_is_gone_count_for_nothing() -> None:
    there = view(node("a", SCOPE), node("b", OTHER, alive=False))
    assert scopes_of_model(there) == (SCOPE,)
    with pytest.raises(UnknownModel, match="no engine is attached to any worker that is alive") as caught:
        scopes_of_model(view(node("b", OTHER, alive=False)), "other")
    assert caught.value.models == ()
    assert caught.value.with_models == str(caught.value)


@pytest.mark.parametrize("text", ["{", '{"model": 5}', "[]", "null"])
def test_a_scope_that_cannot_be_read_says_nothing(text: str) -> None:
    assert scopes_of_model(view(node("a", SCOPE, text=text))) == (SCOPE,)


def test_a_tenant_without_a_policy_lives_under_the_default_by_itself() -> None:
    default = TenantPolicy(tenant="default", sharing="group:all", hot_reserved_bytes=5)
    there = view(policies=(default, TenantPolicy(tenant="acme")))
    assert policy_of(there, ACME).label == "tenant:acme"
    stranger = policy_of(there, TenantId("stranger"))
    assert (stranger.tenant, stranger.label, stranger.hot_reserved_bytes) == ("stranger", "group:all", 0)
    assert policy_of(ClusterView(), ACME).label == "tenant:acme", "nothing was read yet"


def test_a_token_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens"):
        name_blocks(view(node("a", SCOPE)), TenantPolicy(tenant="acme"), [-1] * 16)


def test_no_more_blocks_are_named_than_the_bound() -> None:
    scope = msgspec.structs.replace(SCOPE, layout=msgspec.structs.replace(SCOPE.layout, block_tokens=1))
    tokens = [7] * (NAMED_BLOCKS_MAX + 5)
    (named,) = name_blocks(view(node("a", scope)), TenantPolicy(tenant="acme"), tokens)
    assert len(named.hashes) == NAMED_BLOCKS_MAX
    root = scope_id(scope, label="tenant:acme")
    assert list(named.hashes[:2]) == chain_hashes(root, [7, 7], block_tokens=1)
