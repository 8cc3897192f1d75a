"""What the demo observed: rows and checks, as they are shown and written to the summary."""

from __future__ import annotations

import msgspec

from tiered.types import Source, TokenCounts


class Row(msgspec.Struct, frozen=True):
    """One request. Tokens of the prompt by where their KV was found; times in milliseconds.

    ttft_no_cache_ms: of the same prompt on an engine without any cache, in the same run.
    """

    request: str
    node: str
    tenant: str
    prompt_tokens: int
    hot: int
    peer: int
    redis: int
    missed: int
    ttft_ms: float
    ttft_no_cache_ms: float
    tokens_equal: bool
    logits_equal: bool
    kv_equal: bool
    counted: bool
    """False for a request that no worker saw, so that its tokens are in nobody's books."""

    @property
    def hits(self) -> int:
        return self.hot + self.peer + self.redis

    def by_source(self) -> dict[Source, int]:
        return {Source.HOT: self.hot, Source.PEER: self.peer, Source.REDIS: self.redis}


class Record(msgspec.Struct):
    """All of it, in order. A check that was never reached stays False."""

    model: str = ""
    seed: int = 0
    rows: list[Row] = msgspec.field(default_factory=list)
    checks: dict[str, bool] = msgspec.field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(self.checks.values())

    def books(self) -> dict[str, TokenCounts]:
        """Per tenant, what the cluster's own counters must say."""
        sums: dict[str, TokenCounts] = {}
        for row in self.rows:
            if row.counted:
                counts = TokenCounts(
                    asked=row.prompt_tokens, hot=row.hot, peer=row.peer, redis=row.redis, missed=row.missed
                )
                sums[row.tenant] = sums.get(row.tenant, TokenCounts()).plus(counts)
        return sums
