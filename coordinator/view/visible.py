"""What one tenant may see of the cluster: a view in which it is alone.

Owns what is taken out for that, so that no route or page has to. Nothing here asks who is calling.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.view.snapshot import NO_REDIS, NO_TOKENS, ClusterView, HotUse, TenantView
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy
from tiered.types import DrainProgress, NodeStats, NodeView, TenantId


def view_of_tenant(view: ClusterView, tenant: TenantId) -> ClusterView:
    """The view with the tenant's own names and numbers only; sums are over itself.

    Only what is named here is passed on, so that a new field stays unseen until somebody has thought about it.
    """
    own = view.tenant(tenant) or _unseen(view, tenant)
    return ClusterView(
        nodes=tuple(_node(node, tenant) for node in view.nodes),
        tenants=(own,),
        usage=tuple(row for row in view.usage if row.tenant == tenant),
        tokens=own.tokens,
        hot=own.hot,
        hot_capacity_bytes=view.hot_capacity_bytes,
        redis=own.redis,
        redis_capacity_bytes=view.redis_capacity_bytes,
        taken_at=view.taken_at,
        was_read=view.was_read,
        trouble=view.trouble,
        reason=view.reason,
    )


def _unseen(view: ClusterView, tenant: TenantId) -> TenantView:
    """A tenant that neither holds nor asked for anything yet lives under the default's policy."""
    default = view.tenant(DEFAULT_TENANT)
    policy = (default.policy if default else TenantPolicy(tenant=DEFAULT_TENANT)).of_unnamed(tenant)
    return TenantView(
        policy,
        named=False,
        hot=HotUse(),
        redis=NO_REDIS,
        tokens=NO_TOKENS,
        redis_limit_in_force_bytes=policy.redis_limit_bytes,
    )


def _node(node: NodeView, tenant: TenantId) -> NodeView:
    """Free blocks are those that the tenant does not hold: the true number would tell what the others do. Scopes are
    left out because they name the tenants whose engines are attached."""
    stats = node.stats
    own = stats.tenants.get(tenant)
    seen = NodeStats(
        pool_blocks=stats.pool_blocks,
        free_blocks=max(0, stats.pool_blocks - (own.hot_blocks if own else 0)),
        block_bytes=stats.block_bytes,
        layout=stats.layout,
        tenants={tenant: own} if own else {},
        rates=stats.rates,
        drain=DrainProgress(state=stats.drain.state),
    )
    return replace(node, stats=seen)
