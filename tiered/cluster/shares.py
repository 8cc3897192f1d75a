"""The books of shares: what each node was lent of the tenants' totals, and what it says it holds.

Owns one hash: a record for each life, written by the leader, and a report, written by that life. How much is lent to
whom is the leader's decision. What makes the books safe is here: only the last leader writes, only upon the books and
the members that it read, and only the registered life of a node reports.

A record's ceiling is the most that the life may have in force: of the shares it was lent since the last one that it
has confirmed. Redis' MessagePack knows no bytes, and no record or report holds any.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import msgspec

from tiered.cluster.calls import Call, load, run
from tiered.cluster.connection import Client, command
from tiered.cluster.keys import Keys
from tiered.cluster.routing import Part
from tiered.errors import LeaseExpired, StaleEpoch
from tiered.types import Epoch, NodeId

_SHARE: Final = load("share", "lives")
_LEND: Final = load("lend", "lives")


class Lent(msgspec.Struct, frozen=True, array_like=True):
    """One tenant's share on one node. limit_bytes None: it has no total limit."""

    limit_bytes: int | None
    reserved_bytes: int = 0
    ceiling_bytes: int = 0


class Record(msgspec.Struct, frozen=True):
    """What one life was lent. revision: of the books when it last changed."""

    epoch: int
    revision: int
    tenants: dict[str, Lent] = {}


class Held(msgspec.Struct, frozen=True, array_like=True):
    """held_bytes: the higher of the limit in force and the bytes used. wanted_bytes grows with the node's life."""

    held_bytes: int
    used_bytes: int = 0
    wanted_bytes: int = 0


class Report(msgspec.Struct, frozen=True):
    """What one life has in force. revision: of the record it took last; policies: of the tenants' policies."""

    epoch: int
    revision: int
    policies: int
    tenants: dict[str, Held] = {}


class LendAnswer(enum.IntEnum):
    DONE = 1
    CHANGED = 0
    """The books or the members are not those that were read; read again."""
    FENCED = -1
    """Another leader's turn has begun."""


@dataclass(frozen=True, slots=True)
class Books:
    """All of it at one moment. revision 0: there are none yet, or the server has forgotten them.

    settled: whether every worker has had the time to say what it held before the books were opened.
    """

    revision: int = 0
    token: int = 0
    settled: bool = False
    lent: Mapping[NodeId, Record] = field(default_factory=dict)
    reports: Mapping[NodeId, Report] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Entries that say nothing, such as those of a later version, and why."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_RECORD: Final = msgspec.msgpack.Decoder(Record)
_REPORT: Final = msgspec.msgpack.Decoder(Report)
_HELD_SUFFIX: Final = ":held"


class Shares:
    """Errors of every method: TierError when Redis does not answer."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def exchange(self, node: NodeId, report: Report) -> Record | None:
        """Say what this life holds; what it is lent, or None if nobody has lent it anything yet.

        Errors: LeaseExpired or StaleEpoch if it is not the registered life: it is lent nothing any more. ValueError
        for a record that cannot be understood.
        """
        call = Call([self._keys.nodes(), self._keys.shares()], [node, report.epoch, _ENCODER.encode(report)])
        current, *packed = cast(list[int | bytes], run(self._client, _SHARE, [call])[0])
        if current == -1:
            raise LeaseExpired(f"node {node!r}, epoch {report.epoch}, is no member")
        if not packed:
            raise StaleEpoch(seen=report.epoch, current=int(current))
        return _RECORD.decode(cast(bytes, packed[0])) if packed[0] else None

    def books(self) -> Books:
        entries: dict[bytes, bytes] = command(self._client, "HGETALL", self._keys.shares())
        lent: dict[NodeId, Record] = {}
        reports: dict[NodeId, Report] = {}
        unreadable: dict[str, str] = {}
        for key, packed in entries.items():
            name = key.decode()
            if name.startswith(":"):
                continue
            try:
                if name.endswith(_HELD_SUFFIX):
                    reports[NodeId(name.removesuffix(_HELD_SUFFIX))] = _REPORT.decode(packed)
                else:
                    lent[NodeId(name)] = _RECORD.decode(packed)
            except msgspec.MsgspecError as error:
                unreadable[name] = str(error)
        return Books(
            revision=int(entries.get(b":revision", 0)),
            token=int(entries.get(b":token", 0)),
            settled=entries.get(b":settled") == b"1",
            lent=lent,
            reports=reports,
            unreadable=unreadable,
        )

    def lend(
        self,
        *,
        token: int,
        read: int,
        revision: int,
        settled: bool,
        lives: Sequence[tuple[NodeId, Epoch]],
        changed: Mapping[NodeId, Record],
        gone: Collection[NodeId] = (),
    ) -> LendAnswer:
        """Write what was decided upon the books of revision ``read`` and these registered lives, all or nothing."""
        args: list[Part] = [token, read, revision, int(settled), len(lives)]
        for node, epoch in lives:
            args += (node, epoch)
        args.append(len(changed))
        for node, record in changed.items():
            args += (node, _ENCODER.encode(record))
        keys = [self._keys.leader_tokens(), self._keys.nodes(), self._keys.shares()]
        reply = run(self._client, _LEND, [Call(keys, [*args, *gone])])[0]
        return LendAnswer(cast(int, reply))
