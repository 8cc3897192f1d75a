"""The Lua scripts: lays out their KEYS and ARGV, turns replies into plain Python values.

One typed function per script; what each script promises stands at the top of its file in ``lua/``. Does not know
why a caller runs it. A function that takes many items sends them in one pipeline to each server concerned, and each
script call runs atomically by itself, within one partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar, cast

from tiered.cluster.announcement import Announcement, Heard
from tiered.cluster.calls import Call, load, run, run_tolerant
from tiered.cluster.connection import Client
from tiered.cluster.keys import SCHEMA_VERSION, Keys
from tiered.cluster.routing import Part
from tiered.tenancy.copies import NO_SECONDS, TwoCopies
from tiered.types import NO_HASH, BlockHash, Epoch, NodeId, TenantId

_AuditReply: TypeAlias = tuple[int, int, int, int, int, bytes, list[bytes], list[Any]]
T = TypeVar("T")

HASHES_PER_CALL: Final = 256
"""Blocks one script call handles: about 1 ms of the server's time, which everyone else waits for."""

UNANSWERED: Final = 0
"""In place of a script's answer for a block whose partition's server gave none, while others did."""

TOUCHED_PER_CALL: Final = 1_024
"""More is not known to any script at once: what Lua unpacks is bounded."""

RESERVED_PER_CALL: Final = 32
"""Each may have to evict; a call looks at no more than four blocks for each of these."""

LOST_MAX: Final = 100_000
"""Lost blocks of all partitions together: the oldest are dropped then, and counted."""

LOST_KEPT_MS: Final = 3_600_000
"""After the last was noted: what no worker has had room for by then waits for its next use."""

_RESERVE: Final = load("reserve", "record", "stream", "told", "books")
_COMMIT: Final = load("commit", "record", "stream", "told", "books")
_ABORT: Final = load("abort", "record", "stream", "told", "books")
_REMOVE: Final = load("remove", "record", "stream", "told", "books")
_TOUCH: Final = load("touch", "record", "stream", "told", "books")
_CLEAR: Final = load("clear", "record", "stream", "told", "books")
_EXPIRE: Final = load("expire", "record", "stream", "told", "books")
_AUDIT: Final = load("audit", "record", "stream", "told", "books")
_UNLIST: Final = load("unlist", "record", "stream", "told", "books")
_RECOUNT: Final = load("recount", "record", "stream", "told", "books")
_BOUNDS: Final = load("bounds", "record", "stream", "told", "books")
_CUT: Final = load("cut", "record", "stream", "told", "books")
_RAISE: Final = load("raise", "record", "stream", "told", "books")
_POLICY: Final = load("policy")
_DEAL: Final = load("deal")
_ANNOUNCE: Final = load("announce", "record", "digest", "stream")
_SWEEP: Final = load("sweep", "record", "digest", "stream")
_STAMPS: Final = load("stamps", "record")
_JOIN: Final = load("join", "lives")
_RENEW: Final = load("renew", "lives")
_RETIRE: Final = load("retire", "lives")
_NODES: Final = load("nodes")


def reserve(
    client: Client,
    keys: Keys,
    tenant: TenantId,
    requests: Sequence[tuple[BlockHash, int, int, BlockHash]],
    *,
    ttl_ms: int,
) -> list[int]:
    """(hash, size in bytes, depth, parent's hash or b"") of one tenant's values -> reserve.lua's answer for each."""
    batches = _by_partition(keys, [row[0] for row in requests], RESERVED_PER_CALL)
    calls = []
    for part, places in batches:
        rows: list[Part] = [arg for place in places for arg in requests[place]]
        calls.append(_book_call(part, [requests[place][0] for place in places], [tenant, ttl_ms, *rows]))
    return _in_order(batches, run_tolerant(client, _RESERVE, calls), len(requests))


def commit(client: Client, keys: Keys, items: Sequence[tuple[BlockHash, TenantId, int]]) -> list[bool]:
    """(hash, tenant, size in bytes) -> whether each is committed now, as far as its server said so."""
    batches, calls = _calls_for(keys, items)
    return [answer == 1 for answer in _in_order(batches, run_tolerant(client, _COMMIT, calls), len(items))]


def abort(client: Client, keys: Keys, items: Sequence[tuple[BlockHash, TenantId]]) -> int:
    _, calls = _calls_for(keys, items)
    return _sum(run_tolerant(client, _ABORT, calls))


def remove(client: Client, keys: Keys, hashes: Sequence[BlockHash], *, why: str) -> int:
    calls = []
    for part, places in _by_partition(keys, hashes, HASHES_PER_CALL):
        here = [hashes[place] for place in places]
        calls.append(_book_call(part, here, [why, *here]))
    return _sum(run_tolerant(client, _REMOVE, calls))


def touch(
    client: Client,
    keys: Keys,
    hashes: Sequence[BlockHash],
    tenant: TenantId,
    *,
    first_depth: int = 0,
    ahead_ms: int = 0,
    even_newer: bool = False,
) -> int:
    """The deepest blocks first, so that by time the shallower are newer; of one call by depth."""
    calls = []
    for part, places in _by_partition(keys, hashes, TOUCHED_PER_CALL):
        rows: list[Part] = [arg for place in places for arg in (first_depth + place, hashes[place])]
        here = [hashes[place] for place in places]
        calls.append(_book_call(part, here, [tenant, ahead_ms, int(even_newer), *rows]))
    return _sum(run_tolerant(client, _TOUCH, calls[::-1]))


def clear(client: Client, keys: Keys, tenant: TenantId, *, batch: int) -> int:
    """How many of its blocks of one partition the tenant let go of, at most ``batch``."""
    return cast(int, run(client, _CLEAR, [_book_call(keys, (), [tenant, batch])])[0])


def expire(client: Client, keys: Keys, tenant: TenantId, *, idle_ms: int, batch: int) -> int:
    """How many blocks of one partition, idle for longer, the tenant let go of, at most ``batch``."""
    return cast(int, run(client, _EXPIRE, [_book_call(keys, (), [tenant, idle_ms, batch])])[0])


def change_policy(
    client: Client, keys: Keys, tenant: TenantId, *, how: str, policy: str = "", revision: int | None = None
) -> bool | None:
    """how: "create", "replace", "put" or "delete"; policy: its JSON. Whether anything was changed; None, and nothing
    was, if the policies are no longer of the given revision."""
    only_at: list[Part] = [] if revision is None else [revision]
    call = Call([keys.tenants(), keys.tenants_revision()], [how, tenant, policy, *only_at])
    answer = run(client, _POLICY, [call])[0]
    return None if answer == -1 else answer == 1


def deal(client: Client, keys: Keys, *, begin: bool) -> tuple[int, dict[TenantId, str], int | None]:
    """(number of the deal, stored policies as JSON, capacity), all of one moment."""
    call = Call([keys.deals(), keys.tenants(), keys.shape()], [int(begin), keys.partitions, SCHEMA_VERSION])
    number, flat, capacity = cast(tuple[int, list[bytes], bytes], run(client, _DEAL, [call])[0])
    policies = {TenantId(t.decode()): text.decode() for t, text in zip(flat[::2], flat[1::2], strict=True)}
    return number, policies, int(capacity) if capacity else None


def set_bounds(
    client: Client,
    keys: Keys,
    number: int,
    limits: Mapping[str, tuple[int, bool]],
    other: Mapping[str, str],
    *,
    only_falls: bool,
) -> dict[str, int] | None:
    """limits: bytes, and whether at least what is held by now. One partition's limits as they are now, by name; None
    if a later deal was there."""
    rows: list[Part] = [arg for name, (n_bytes, keep) in limits.items() for arg in (name, n_bytes, int(keep))]
    more: list[Part] = [arg for row in other.items() for arg in row]
    call = _book_call(keys, (), [number, int(only_falls), len(limits), *rows, *more])
    now = [int(value) for value in cast(list[bytes | int], run(client, _BOUNDS, [call])[0])]
    return None if now == [-1] else dict(zip(limits, now, strict=True))


def cut(client: Client, name: str, asked: Sequence[tuple[Keys, int, bool]]) -> list[tuple[int, int]]:
    """(partition, bytes, whether blocks may leave for them) -> (bytes taken, number of the deal they are of).

    From a server that does not answer nothing is taken, as far as we know.
    """
    calls = [_book_call(keys, (), [name, bytes_, int(force)]) for keys, bytes_, force in asked]
    replies = cast(list[list[bytes] | None], run_tolerant(client, _CUT, calls))
    return [(0, 0) if reply is None else (int(reply[0]), int(reply[1])) for reply in replies]


def raise_limits(client: Client, number: int, more: Sequence[tuple[Keys, Mapping[str, int]]]) -> list[bool]:
    """(partition, bytes by limit) -> whether each took them; not if another deal was there meanwhile."""
    calls = []
    for keys, by_name in more:
        rows: list[Part] = [arg for row in by_name.items() for arg in row]
        calls.append(_book_call(keys, (), [number, *rows]))
    return [reply == 1 for reply in run_tolerant(client, _RAISE, calls)]


@dataclass(frozen=True, slots=True)
class Audit:
    """What audit.lua found among some blocks.

    expired: reservations settled. lost: values that were gone or short. stray: values without a record. relisted:
    charges missing from a tenant's list, and reservations from theirs. blocks, stored_bytes: committed ones. charged,
    listed: for those, by tenant, the bytes it pays and how many blocks it pays for.
    orphans: (block, its parent) where the partition knows of no such parent.
    """

    expired: int = 0
    lost: int = 0
    stray: int = 0
    relisted: int = 0
    blocks: int = 0
    stored_bytes: int = 0
    orphans: Sequence[tuple[BlockHash, BlockHash]] = ()
    charged: Mapping[TenantId, int] = field(default_factory=dict)
    listed: Mapping[TenantId, int] = field(default_factory=dict)


def audit(
    client: Client, keys: Keys, hashes: Sequence[BlockHash], *, settle: bool, parts_met: Mapping[BlockHash, int]
) -> list[Audit]:
    """One finding per call of the script; hashes of any partitions. parts_met: by number, of values that may be
    strays."""
    found = []
    calls = []
    for part, places in _by_partition(keys, hashes, HASHES_PER_CALL):
        batch = [hashes[place] for place in places]
        rows: list[Part] = [arg for block_hash in batch for arg in (block_hash, parts_met.get(block_hash, 0))]
        calls.append(_book_call(part, batch, [int(settle), *rows]))
    for reply in run(client, _AUDIT, calls):
        *counts, stored_bytes, orphans, parts = cast(_AuditReply, reply)
        tenants = [TenantId(name.decode()) for name in parts[::3]]
        charged = dict(zip(tenants, map(int, parts[1::3]), strict=True))
        listed = dict(zip(tenants, parts[2::3], strict=True))
        expired, lost, stray, relisted, blocks = counts
        row = (expired, lost, stray, relisted, blocks, int(stored_bytes))
        lone = tuple((BlockHash(h), BlockHash(p)) for h, p in zip(orphans[::2], orphans[1::2], strict=True))
        found.append(Audit(*row, orphans=lone, charged=charged, listed=listed))
    return found


def unlist(client: Client, keys: Keys, tenant: TenantId, hashes: Sequence[BlockHash]) -> int:
    """How many of these blocks of one partition were on the tenant's list without a record that says so."""
    calls = []
    for i in range(0, len(hashes), HASHES_PER_CALL):
        batch = hashes[i : i + HASHES_PER_CALL]
        calls.append(_book_call(keys, batch, [tenant, *batch]))
    return _sum(run(client, _UNLIST, calls))


def recount(
    client: Client,
    keys: Keys,
    told: bytes,
    usage: Mapping[bytes, bytes],
    rows: Sequence[tuple[TenantId, int, int]],
) -> bool:
    """told: the newest of the why-log. rows: tenant, bytes used, blocks. Whether one partition's books were written
    by them."""
    fields: list[Part] = [arg for field in usage.items() for arg in field]
    tenants: list[Part] = [arg for row in rows for arg in row]
    call = _book_call(keys, (), [told, len(usage), *fields, *tenants])
    return run(client, _RECOUNT, [call])[0] == 1


def announce(
    client: Client, keys: Keys, node: NodeId, epoch: Epoch, announcements: Sequence[Announcement]
) -> list[Heard | None]:
    """What became of each; None where the server did not answer while another one did."""
    calls = []
    for one in announcements:
        part = keys.every()[one.partition]
        prefix = part.meta(NO_HASH)
        fixed = [part.node_blocks(node, epoch), part.node_digests(node, epoch), part.changes()]
        metas = [prefix + block_hash for hashes in (one.stored, one.removed) for block_hash in hashes]
        truth: list[Part] = ["", ""] if one.whole is None else [one.whole.count, one.whole.text()]
        calls.append(Call(fixed + metas, [node, epoch, one.number, len(one.stored), *truth]))
    replies = cast(list[list[int] | None], run_tolerant(client, _ANNOUNCE, calls))
    return [None if reply is None else Heard(reply[0] == 1, int(reply[1])) for reply in replies]


def sweep(
    client: Client, keys: Keys, node: NodeId, epoch: Epoch, *, batch: int, two: TwoCopies = NO_SECONDS
) -> tuple[int, int]:
    """(hashes taken from the life's set in one partition, stamps removed)."""
    named = [keys.node_blocks(node, epoch), keys.node_digests(node, epoch), keys.changes(), keys.meta(NO_HASH)]
    named += [keys.lost(), keys.lost_dropped()]
    bounds = [max(1, LOST_MAX // keys.partitions), LOST_KEPT_MS]
    args: list[Part] = [node, epoch, batch, *bounds, int(two.by_default), *sorted(two.exceptions)]
    taken, removed = cast(list[int], run(client, _SWEEP, [Call(named, args)])[0])
    return taken, removed


def stray_stamps(client: Client, keys: Keys, hashes: Sequence[BlockHash], *, remove: bool) -> int:
    """How many stamps there are, on blocks of any partition, of lives that do not list the block."""
    calls = [
        Call([part.lives(), *(part.meta(hashes[place]) for place in places)], [int(remove)])
        for part, places in _by_partition(keys, hashes, HASHES_PER_CALL)
    ]
    return _sum(run(client, _STAMPS, calls))


def join(client: Client, keys: Keys, node: NodeId, info: bytes, *, lease_ms: int) -> Epoch:
    call = Call(
        [keys.epochs(), keys.nodes(), keys.node_lease(node), keys.node_stats(), keys.retired_tokens()],
        [node, info, lease_ms],
    )
    return Epoch(cast(int, run(client, _JOIN, [call])[0]))


def renew(client: Client, keys: Keys, node: NodeId, epoch: Epoch, stats: bytes, *, lease_ms: int) -> int:
    call = Call([keys.nodes(), keys.node_lease(node), keys.node_stats()], [node, epoch, stats, lease_ms])
    return cast(int, run(client, _RENEW, [call])[0])


def retire(client: Client, keys: Keys, node: NodeId, epoch: Epoch, *, how: str) -> bool:
    """how: "leave" or "lapsed"."""
    call = Call([keys.nodes(), keys.node_lease(node), keys.node_stats(), keys.retired_tokens()], [node, epoch, how])
    return run(client, _RETIRE, [call])[0] == 1


def nodes(client: Client, keys: Keys, *, stats: bool) -> list[tuple[NodeId, bytes, int, bytes | None]]:
    """(node, entry, lease left in ms, stats if asked for) of each registered life."""
    call = Call([keys.nodes(), keys.node_stats(), keys.node_lease(NodeId(""))], [int(stats)])
    rows = cast(list[tuple[bytes, bytes, int, bytes | None]], run(client, _NODES, [call])[0])
    return [(NodeId(node.decode()), entry, lease_ms, packed) for node, entry, lease_ms, packed in rows]


def _book_call(keys: Keys, hashes: Sequence[BlockHash], args: Sequence[Part]) -> Call:
    """KEYS as books.lua has them, then the meta of each block."""
    fixed = [
        keys.usage(),
        keys.limits(),
        keys.standings(),
        keys.reservations(),
        keys.meta(NO_HASH),
        keys.block(NO_HASH),
        keys.tenant_blocks(TenantId("")),
        keys.changes(),
        keys.why(),
    ]
    return Call(fixed + [keys.meta(h) for h in hashes], args)


_Batches: TypeAlias = list[tuple[Keys, Sequence[int]]]


def _by_partition(keys: Keys, hashes: Sequence[BlockHash], size: int) -> _Batches:
    """The places of the hashes, in order, in batches that each belong to one partition."""
    if keys.partitions == 1:
        return [(keys, range(i, min(i + size, len(hashes)))) for i in range(0, len(hashes), size)]
    places: dict[Keys, list[int]] = {}
    for place, block_hash in enumerate(hashes):
        places.setdefault(keys.of(block_hash), []).append(place)
    return [(part, batch) for part, theirs in places.items() for batch in _batches(theirs, size)]


def _calls_for(keys: Keys, items: Sequence[tuple[Any, ...]]) -> tuple[_Batches, list[Call]]:
    """Calls whose arguments are the items, one after the other; each begins with a block's hash."""
    batches = _by_partition(keys, [item[0] for item in items], HASHES_PER_CALL)
    calls = []
    for part, places in batches:
        args = [arg for place in places for arg in items[place]]
        calls.append(_book_call(part, [items[place][0] for place in places], args))
    return batches, calls


def _in_order(batches: _Batches, replies: Sequence[object], n: int) -> list[int]:
    answers = [UNANSWERED] * n
    for (_, places), reply in zip(batches, replies, strict=True):
        if reply is not None:
            for place, answer in zip(places, cast(list[int], reply), strict=True):
                answers[place] = answer
    return answers


def _sum(replies: Sequence[object]) -> int:
    return sum(reply for reply in replies if isinstance(reply, int))


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
