"""Every message as a typed record. Frames carry the wire version; a frame of another one is refused.

Within a version there are minor ones, which both sides say when they meet (``minor`` of Attach and Attached, of
Challenge and Proof). A later one may append fields that have defaults, and may have new messages, which are sent
only to who has said a minor version that knows them. docs/formats.md has the rules.

Engine to worker, over the Unix socket (no KV byte crosses it): Attach, Match, Load, Allocate, Commit, Release.
A client without a pool of its own, over the same socket: Attach, OpenSequence, Append, Attend, and bytes with them.
Worker to worker, over TCP: Challenge, Proof, Fetch, Holding, then the blocks themselves as ``codec.frame`` values.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from tiered.hashing.scope import ModelScope
from tiered.layout import KvLayout
from tiered.types import NO_HINTS, BlockHere, Hints, TokenCounts, Told

WIRE_VERSION: Final = 1
WIRE_MINOR: Final = 0
"""What this side says of itself; 0 is also what is taken of who says nothing."""

FRAME_BYTES_MAX: Final = 16 << 20
"""No honest message is larger: 8 Mi tokens of hashes fit."""

EXPLAINED_BLOCKS_MAX: Final = 256
EXPLAINED_EVENTS_MAX: Final = 1_000
"""Of one answer: less than a MiB."""


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages; encoded as [type name, field, ...]."""


class Failure(Message, frozen=True):
    """The request was understood and refused. kind: a short fixed word; message: one sentence for a person."""

    kind: str
    message: str


# Engine <-> worker.


class Attach(Message, frozen=True):
    """First message of an engine. The worker builds its pool for the first layout it sees.

    engine: its name and version; version: of this package on its side. Both for people.
    """

    scope: ModelScope
    engine: str
    pid: int
    version: str = ""
    minor: int = 0


class Attached(Message, frozen=True):
    """The pool's memory comes with this message as a descriptor (cpu), or in ``handle`` (CUDA IPC).

    pool: the name of this very pool; no other, of an earlier life neither, has the same. version: of the worker.
    """

    node: str
    connection: int
    layout: KvLayout
    n_blocks: int
    device: str
    match_lease_s: float
    handle: bytes = b""
    pool: bytes = b""
    version: str = ""
    minor: int = 0


class Describe(Message, frozen=True):
    """Who is there, and who is attached? Asked by whoever may open the socket; nothing is attached by it."""


class AttachedEngine(msgspec.Struct, frozen=True, array_like=True):
    """What an engine said of itself when it attached."""

    engine: str
    version: str
    pid: int


class Described(Message, frozen=True):
    """layout: of the pool, for people; '' and no blocks before the first engine. tokens: of all tenants together."""

    node: str
    version: str
    layout: str
    n_blocks: int
    engines: tuple[AttachedEngine, ...]
    tokens: TokenCounts


class Sharing(Message, frozen=True):
    """Which sharing label a tenant's blocks bear; it may change while the engine runs."""

    tenant: str


class Shared(Message, frozen=True):
    label: str


class Match(Message, frozen=True):
    """hashes: the prompt's full blocks, joined. asked_tokens: of the whole prompt, for the books.

    trace, here and below: the span that asks, as a W3C traceparent; '' while nothing is traced.
    """

    tenant: str
    scope_id: bytes
    hashes: bytes
    asked_tokens: int
    hints: Hints = NO_HINTS
    trace: str = ""


class Matched(Message, frozen=True):
    """block_ids: hot and pinned, little-endian u32; n_peer and n_redis blocks follow them elsewhere."""

    lease: int
    block_ids: bytes
    checksums: bytes
    n_peer: int
    n_redis: int


class Load(Message, frozen=True):
    """Bring up what Matched promised, waiting at most ``deadline_s``."""

    lease: int
    deadline_s: float
    trace: str = ""


class Loaded(Message, frozen=True):
    """All blocks of the prefix that may be read now, from the first on; sources is one byte a block."""

    block_ids: bytes
    checksums: bytes
    sources: bytes


class Open(Message, frozen=True):
    """Begin a save: the chain to write, from its first block on."""

    tenant: str
    scope_id: bytes
    hashes: bytes
    hints: Hints = NO_HINTS


class Opened(Message, frozen=True):
    lease: int


class Allocate(Message, frozen=True):
    """Slots for the next blocks of a save, waiting at most ``wait_s`` for room to be made."""

    lease: int
    n_blocks_max: int
    wait_s: float


class Allocated(Message, frozen=True):
    """Slots for hashes[first_index:]; shortfall says why there are fewer than asked for, gave whose blocks left."""

    first_index: int
    block_ids: bytes
    shortfall: str
    gave: dict[str, int] = {}


class Commit(Message, frozen=True):
    """The oldest unfinished blocks of the save are whole; 16 bytes of checksum each, zeros for "none"."""

    lease: int
    checksums: bytes


class Committed(Message, frozen=True):
    n_blocks: int


class Release(Message, frozen=True):
    """used_tokens: of the prompt's first, those not computed; the engine had the first own_tokens of them itself."""

    lease: int
    used_tokens: int
    own_tokens: int = 0


class Released(Message, frozen=True):
    """held: False when the lease had ended before; what was copied under it is then not to be trusted."""

    held: bool


class Vouch(Message, frozen=True):
    """Are the pins of this lease of that connection held now? Another process of its engine reads under them."""

    connection: int
    lease: int


class Vouched(Message, frozen=True):
    held: bool


class Prefilled(Message, frozen=True):
    """How long the engine took to compute so many tokens of a prompt."""

    n_tokens: int
    took_s: float


class PrefillNoted(Message, frozen=True):
    pass


class CloseSession(Message, frozen=True):
    """The conversation that hints named so is over."""

    tenant: str
    session: str


class SessionClosed(Message, frozen=True):
    pass


# Sequences on the worker's side: here, and only here, keys and values cross the socket.


class OpenSequence(Message, frozen=True):
    tenant: str
    scope_id: bytes


class SequenceOpened(Message, frozen=True):
    sequence: int


class Reuse(Message, frozen=True):
    """Append as many whole blocks of ``tokens``, little-endian u32, as are cached; no more."""

    sequence: int
    tokens: bytes


class Append(Message, frozen=True):
    """keys_values: of all of ``tokens``, (n_layers, n_planes, n_tokens, n_kv_heads, head_dim), the pool's dtype."""

    sequence: int
    tokens: bytes
    keys_values: bytes


class Appended(Message, frozen=True):
    """n_reused: how many of the tokens were cached, so that what was sent for them was not used."""

    n_tokens: int
    n_reused: int


class Attend(Message, frozen=True):
    """The last ``query_lens[i]`` tokens of ``sequences[i]`` attend to it up to themselves.

    queries: (sum of query_lens, n_heads, head_dim), the pool's dtype.
    """

    sequences: tuple[int, ...]
    query_lens: tuple[int, ...]
    layer: int
    n_heads: int
    queries: bytes
    scale: float | None = None
    latent_dim: int | None = None


class Attention(Message, frozen=True):
    """outputs: (sum of query_lens, n_heads, head_dim, or latent_dim where one was named), the pool's dtype."""

    outputs: bytes


class Fork(Message, frozen=True):
    sequence: int


class Truncate(Message, frozen=True):
    sequence: int
    n_tokens: int


class DropSequence(Message, frozen=True):
    sequence: int


class SequenceChanged(Message, frozen=True):
    pass


SequenceRequest: TypeAlias = OpenSequence | Reuse | Append | Attend | Fork | Truncate | DropSequence
SequenceReply: TypeAlias = SequenceOpened | Appended | Attention | SequenceChanged


EngineRequest: TypeAlias = (
    Attach
    | Describe
    | Sharing
    | Match
    | Load
    | Open
    | Allocate
    | Commit
    | Release
    | Vouch
    | Prefilled
    | CloseSession
    | SequenceRequest
)
EngineReply: TypeAlias = (
    Attached
    | Described
    | Shared
    | Matched
    | Loaded
    | Opened
    | Allocated
    | Committed
    | Released
    | Vouched
    | PrefillNoted
    | SessionClosed
    | Failure
    | SequenceReply
)


# Worker <-> worker.


class Challenge(Message, frozen=True):
    """First message of the serving side; nonce is random."""

    node: str
    epoch: int
    nonce: bytes
    minor: int = 0


class Proof(Message, frozen=True):
    """Who asks, its proof that it knows the cluster secret (see ``wire.auth``), and its own challenge."""

    node: str
    digest: bytes
    nonce: bytes
    minor: int = 0


class Welcome(Message, frozen=True):
    """The serving side's proof of the same, for the asker's nonce."""

    digest: bytes


class Fetch(Message, frozen=True):
    """Blocks wanted of one life of the node."""

    epoch: int
    scope_id: bytes
    hashes: bytes
    trace: str = ""


class Holding(Message, frozen=True):
    """Which of the asked hashes follow, by index, each as header and payload; the others are not here."""

    indices: tuple[int, ...]
    block_bytes: int


# Coordinator -> worker, over the same port and with the same proof: why a block is, or is not, here.


class Explain(Message, frozen=True):
    """What happened to these blocks, and what they are now. hashes: joined, at most EXPLAINED_BLOCKS_MAX."""

    hashes: bytes


class Recent(Message, frozen=True):
    """What happened to any block: the newest ``n_max``, or the first after ``after_seq`` where that is not 0.

    tenant, what: of that tenant, and of those kinds alone, where some are given.
    """

    after_seq: int
    n_max: int
    tenant: str = ""
    what: tuple[str, ...] = ()


class Explained(Message, frozen=True):
    """events: oldest first, EXPLAINED_EVENTS_MAX at most. last_seq: what to ask for more after. lost: events that had
    to make room for later ones."""

    events: tuple[Told, ...]
    last_seq: int
    lost: int
    blocks: tuple[BlockHere, ...] = ()


PeerRequest: TypeAlias = Proof | Fetch | Explain | Recent
PeerReply: TypeAlias = Challenge | Welcome | Holding | Failure | Explained
