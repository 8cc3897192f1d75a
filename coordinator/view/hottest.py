"""The prefixes used most in the cluster, from what each node says of its own; bounded as those lists are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tiered.types import NodeView


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """The first n_blocks blocks of some prompts, named by the hash of the last, in hex. nodes: those that name it.
    within: the longest other one that it begins with, by its hash; empty for none."""

    tenant: str
    block_hash: str
    n_blocks: int
    hits: int
    nodes: tuple[str, ...]
    within: str = ""


def hottest(nodes: Iterable[NodeView]) -> list[HotPrefix]:
    """Those first that saved most blocks of computing: hits times blocks, summed over the nodes."""
    found: dict[str, HotPrefix] = {}
    within: dict[str, set[str]] = {}
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
            if of.within:
                within.setdefault(of.block_hash, set()).add(of.within)
    placed = [replace(of, within=_longest(within.get(of.block_hash, ()), found)) for of in found.values()]
    return sorted(placed, key=lambda of: (-of.hits * of.n_blocks, of.block_hash))


def _longest(names: Iterable[str], found: dict[str, HotPrefix]) -> str:
    """Nodes name different ones, and all of these lie on one chain."""
    return max((name for name in names if name in found), key=lambda name: found[name].n_blocks, default="")
