"""The prefixes used most in the cluster, from what each node says of its own; bounded as those lists are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiered.types import NodeView


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """The first n_blocks blocks of some prompts, named by the hash of the last, in hex. nodes: those that name it."""

    tenant: str
    block_hash: str
    n_blocks: int
    hits: int
    nodes: tuple[str, ...]


def hottest(nodes: Iterable[NodeView]) -> list[HotPrefix]:
    """Those first that saved most blocks of computing: hits times blocks, summed over the nodes."""
    found: dict[str, HotPrefix] = {}
    for node in nodes:
        for of in node.stats.prefixes:
            known = found.get(of.block_hash)
            found[of.block_hash] = HotPrefix(
                tenant=of.tenant if known is None else known.tenant,
                block_hash=of.block_hash,
                n_blocks=of.n_blocks,
                hits=of.hits + (0 if known is None else known.hits),
                nodes=(*(() if known is None else known.nodes), node.info.node),
            )
    return sorted(found.values(), key=lambda of: (-of.hits * of.n_blocks, of.block_hash))
