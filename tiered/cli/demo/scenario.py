"""The demo's story, step by step: each request, what it must show, and what is done to the cluster in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tiered.cli.api import CoordinatorClient
from tiered.cli.demo.conversations import SEED, TENANTS, deal, read_conversations
from tiered.cli.demo.engines import EngineProcess
from tiered.cli.demo.messages import Answer
from tiered.cli.demo.record import Record, Row
from tiered.cli.launcher import LocalCluster
from tiered.cli.output import progress

MAX_NEW_TOKENS: Final = 16
SETTLE_S: Final = 20.0
"""For what the cluster does by itself: counters reach the coordinator within two heartbeats, a quota within two
seconds, a killed node's lease lapses after five."""

QUOTA_S: Final = 2.0
"""In which a changed quota is promised to be in force on every worker; before it, one could still refuse a fetch."""

CHECKS: Final = (
    "first_request_is_computed_and_cached",
    "same_node_hits_hot",
    "other_node_fetches_from_the_first_over_tcp",
    "other_tenant_with_the_same_prompt_hits_nothing",
    "same_tenant_with_the_same_prompt_hits",
    "engine_answers_after_its_worker_was_killed",
    "after_the_kill_and_the_eviction_redis_serves",
    "answers_equal_the_uncached_engine_token_for_token",
    "logits_equal_the_uncached_engine_bit_for_bit",
    "cached_kv_equals_the_uncached_engine_bit_for_bit",
    "the_clusters_books_equal_what_the_engines_saw",
)


class Scenario:
    """Runs on a started cluster of three workers, with one engine a node and one without any cache."""

    def __init__(
        self,
        cluster: LocalCluster,
        engines: Mapping[str, EngineProcess],
        reference: EngineProcess,
        api: CoordinatorClient,
        record: Record,
        *,
        on_row: Callable[[Row], None],
    ) -> None:
        self._cluster = cluster
        self._engines = engines
        self._reference = reference
        self._api = api
        self._record = record
        self._on_row = on_row
        self._uncached: dict[tuple[int, ...], Answer] = {}
        record.seed = SEED
        record.checks = dict.fromkeys(CHECKS, False)

    def run(self) -> None:
        """Tell the story; what was not observed stays False in the record."""
        ours, theirs = TENANTS
        node_1, node_2, node_3 = (worker.name for worker in self._cluster.workers)
        conversations = deal(read_conversations())
        first, second, third = conversations[ours][:3]
        other, another = conversations[theirs][:2]
        checks = self._record.checks
        for tenant in TENANTS:
            self._api.create_tenant(tenant, {})

        opening = self._prompt(first.turn(1))
        row, answer = self._request("first request", node_1, ours, opening)
        checks[CHECKS[0]] = row.hits == 0 and answer.saved_blocks > 0
        follow_up = self._prompt(first.turn(2))
        row, _ = self._request("next turn, same node", node_1, ours, follow_up)
        checks[CHECKS[1]] = row.hot > 0 and row.peer == row.redis == 0
        row, _ = self._request("same prompt, other node", node_2, ours, follow_up)
        checks[CHECKS[2]] = row.peer > 0 and row.redis == 0
        row, _ = self._request("same prompt, other tenant", node_1, theirs, follow_up)
        checks[CHECKS[3]] = row.hits == 0
        row, _ = self._request("same prompt, same tenant", node_1, ours, follow_up)
        checks[CHECKS[4]] = row.hits > 0
        self._request("another conversation", node_2, ours, self._prompt(second.turn(2)))
        self._request("other tenant's own", node_2, theirs, self._prompt(other.turn(1)))
        self._request("its next turn", node_3, theirs, self._prompt(other.turn(2)))

        self._await("the cluster's counters", self._books_agree)
        self._cluster.workers[0].kill()
        row, _ = self._request("own worker killed", node_1, ours, follow_up, worker_alive=False)
        checks[CHECKS[5]] = row.hits == 0 and row.tokens_equal
        self._evict_to_redis(ours, killed=node_1)
        row, _ = self._request("evicted everywhere", node_3, ours, follow_up)
        checks[CHECKS[6]] = row.redis > 0 and row.hot == row.peer == 0
        self._request("a longer conversation", node_2, ours, self._prompt(third.turn(3)))
        self._request("another of theirs", node_3, theirs, self._prompt(another.turn(3)))

        rows = self._record.rows
        checks[CHECKS[7]] = all(row.tokens_equal for row in rows)
        checks[CHECKS[8]] = all(row.logits_equal for row in rows)
        checks[CHECKS[9]] = all(row.kv_equal for row in rows)
        checks[CHECKS[10]] = self._await("the cluster's counters", self._books_agree)

    def _prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self._reference.encode(list(messages))

    def _request(
        self, name: str, node: str, tenant: str, prompt: list[int], *, worker_alive: bool = True
    ) -> tuple[Row, Answer]:
        """One request on a node's engine, beside the same one on the engine without a cache."""
        with progress(f"{name}: {len(prompt)} tokens on {node} for {tenant}"):
            expected = self._uncached.get(tuple(prompt))
            if expected is None:
                expected = self._reference.generate(prompt, tenant=tenant, max_new_tokens=MAX_NEW_TOKENS)
                self._uncached[tuple(prompt)] = expected
            answer = self._engines[node].generate(prompt, tenant=tenant, max_new_tokens=MAX_NEW_TOKENS)
        hits = {source: answer.hits.get(source, 0) for source in ("hot", "peer", "redis")}
        row = Row(
            request=name,
            node=node,
            tenant=tenant,
            prompt_tokens=len(prompt),
            missed=len(prompt) - sum(hits.values()),
            ttft_ms=round(answer.ttft_s * 1e3, 1),
            ttft_no_cache_ms=round(expected.ttft_s * 1e3, 1),
            tokens_equal=answer.tokens == expected.tokens,
            logits_equal=answer.logits_digest == expected.logits_digest,
            kv_equal=answer.kv_digests == expected.kv_digests,
            counted=worker_alive,
            **hits,
        )
        self._record.rows.append(row)
        self._on_row(row)
        return row, answer

    def _evict_to_redis(self, tenant: str, *, killed: str) -> None:
        """Take the tenant's hot quota away until nothing of it is hot anywhere, then give it back."""
        self._api.change_tenant(tenant, {"hot_limit_bytes": 0})
        self._await(
            f"{killed}'s lease to lapse", lambda: all(n.node != killed or not n.alive for n in self._api.nodes())
        )
        self._await("the hot tier to let go", lambda: self._api.tenant(tenant).hot.used_bytes == 0)
        self._api.change_tenant(tenant, {"hot_limit_bytes": None})
        time.sleep(QUOTA_S)

    def _books_agree(self) -> bool:
        counted = self._api.stats().by_tenant
        return {tenant: tokens for tenant, tokens in counted.items() if tokens.asked} == self._record.books()

    def _await(self, what: str, holds: Callable[[], bool]) -> bool:
        """Poll until it holds; False, and on with the story, when it does not in time."""
        deadline = time.monotonic() + SETTLE_S
        with progress(f"waiting for {what}"):
            while not holds():
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.1)
        return True
