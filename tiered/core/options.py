"""From settings and layout to the core's options: the one place that turns shares and bytes into blocks."""

from __future__ import annotations

from typing import Final

from tiered.config import PoolSettings
from tiered.core.core import CoreOptions
from tiered.eviction.registry import policy_factory
from tiered.layout import KvLayout

LEAVING_BYTES_MAX: Final = 64 << 20
"""Copies under way at once, in bytes: the staging memory of one worker."""


def pool_blocks(settings: PoolSettings, layout: KvLayout) -> int:
    return settings.bytes // layout.block_bytes


def staging_blocks(layout: KvLayout) -> int:
    return max(2, min(64, LEAVING_BYTES_MAX // layout.block_bytes))


def core_options(settings: PoolSettings, layout: KvLayout, n_blocks: int, *, lower_tier: bool) -> CoreOptions:
    """Errors: ConfigError for an unknown policy."""
    return CoreOptions(
        block_bytes=layout.block_bytes,
        block_tokens=layout.block_tokens,
        policy=policy_factory(settings.policy),
        demote=settings.demote,
        free_target_blocks=int(n_blocks * settings.free_target),
        leaving_max=staging_blocks(layout),
        match_lease_s=settings.match_lease_s,
        lower_tier=lower_tier,
        policy_name=settings.policy,
    )
