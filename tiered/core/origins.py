"""Where the blocks below the hot tier may be fetched from, nearest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiered.jobs import Origin, PeerAddress
from tiered.types import NodeId, Source, Whereabouts

_REDIS = Origin(Source.REDIS)


def origins_of(whereabouts: Sequence[Whereabouts], *, live: Mapping[NodeId, PeerAddress]) -> list[tuple[Origin, ...]]:
    """Per block its origins: peers whose very life is running (I8), then Redis.

    An owner of an older epoch does not count. How long a stored value is says nothing: codecs make it shorter.
    """
    origins = []
    for where in whereabouts:
        choices = [
            Origin(Source.PEER, peer)
            for owner in where.owners
            if (peer := live.get(owner.node)) is not None and peer.epoch == owner.epoch
        ]
        if where.in_redis:
            choices.append(_REDIS)
        origins.append(tuple(choices))
    return origins
