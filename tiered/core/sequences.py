"""Sequences: append, written, fork, truncate, drop over the hot tier.

A block of a sequence is either READY, shared with whoever has the same prefix and never written again, or FILLING
under a name that no hash can be, so that nobody finds it: open, or full and not whole yet. The sequences that hold a
block each pin it once. Who writes into a block that another sequence, a copy or the index knows gets a copy of it
first; the last one that holds an open block writes in place.

An engine takes two steps: ``append`` says which tokens are cached and where the others go, ``written`` that they are
there. Only then a full block becomes matchable. Between the two the sequence can be dropped, or cut back to before
the append, and nothing else. Of a private sequence a full block becomes matchable only when ``share`` says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.blocks.state import BlockState
from tiered.core.allocate import Shortfall
from tiered.core.core import CacheCore
from tiered.core.holders import holders
from tiered.core.match import touch_prefix
from tiered.core.open_blocks import give_back, pin, share_whole, take_open, tell_use
from tiered.errors import OutOfBlocks, OwnershipError
from tiered.hashing.chain import Extras
from tiered.sequence.sequence import Appended, BlockCopy, Extension, TokenSequence
from tiered.types import BlockId, SequenceId, TenantId, TokenCounts


def open_sequence(
    core: CacheCore,
    *,
    connection: int,
    tenant: TenantId,
    scope_id: bytes,
    extras: Extras | None = None,
    is_private: bool = False,
) -> TokenSequence:
    """An empty sequence of the connection; it ends with drop or with the connection, never by time.

    is_private: nothing of it is shared before ``share``, nor its prompt counted: whoever keeps it so has matched it.
    """
    sequence = TokenSequence(
        sequence_id=SequenceId(core.next_id()),
        connection=connection,
        tenant=tenant,
        scope_id=scope_id,
        block_tokens=core.options.block_tokens,
        extras=extras,
        counted=is_private,
        is_private=is_private,
    )
    core.sequences[sequence.sequence_id] = sequence
    return sequence


def find_sequence(core: CacheCore, sequence_id: SequenceId, *, connection: int) -> TokenSequence:
    """The sequence, if it is this connection's; OwnershipError when it was dropped or never was."""
    sequence = core.sequences.get(sequence_id)
    if sequence is None or sequence.connection != connection:
        raise OwnershipError(f"sequence {sequence_id} is not held by this connection")
    return sequence


def append(core: CacheCore, sequence: TokenSequence, extension: Extension, *, force: bool = False) -> Appended | None:
    """Blocks for further tokens: first what is resident of the blocks that they fill, then fresh ones, all or none.

    None while room is being made: pump and ask again. force: let blocks leave without a copy.
    Errors: OutOfBlocks; OwnershipError for a sequence that was dropped; ValueError while an earlier append is not
            written. The sequence is then as it was.
    """
    _require_written(core, sequence, "append")
    begin, size = len(sequence), sequence.block_tokens
    if extension.first_token != begin:
        raise ValueError(
            f"append: made for {extension.first_token} tokens, sequence {sequence.sequence_id} has {begin}"
        )
    end = begin + len(extension.tokens)
    if end == begin:
        return Appended(begin, end)
    first = min(sequence.n_ready, begin // size)
    run = core.index.match([*sequence.hashes[first:], *extension.hashes])
    reused_end = first + len(run)
    first_token = max(begin, reused_end * size)
    n_held = max(len(sequence.block_ids), reused_end)
    source = _copied_first(core, sequence) if first_token == begin else None
    n_fresh = -(-end // size) - n_held + (source is not None)

    for block_id in reversed(run):
        pin(core, block_id)
    fresh = take_open(core, sequence, n_fresh, end, force=force)
    if isinstance(fresh, Shortfall):
        for block_id in run:
            core.table.unpin(block_id)
        if fresh is Shortfall.SOON:
            return None
        raise out_of_blocks(core, sequence, n_fresh, fresh)

    if not sequence.is_private:  # whose match has told
        tell_use(core, sequence.tenant, run)
        promise = core.promises.get(sequence.tenant)
        if promise is not None and not sequence.counted:
            promise.asked(extension.hashes, n_hits=len(run))
    replaced = sequence.block_ids[first:reused_end]
    sequence.block_ids[first:reused_end] = run
    for block_id in reversed(replaced):
        give_back(core, block_id)
    copy = None
    if source is not None:
        copy = sequence.copy = BlockCopy(source, fresh[0], begin % size)
        sequence.block_ids[-1] = fresh[0]
    sequence.block_ids.extend(fresh if copy is None else fresh[1:])
    sequence.tokens.extend(extension.tokens)
    sequence.hashes.extend(extension.hashes)
    sequence.n_ready, sequence.n_written = reused_end, first_token
    for index in [index for index in sequence.checksums if index < reused_end]:
        del sequence.checksums[index]
    _count(core, sequence, asked=end - begin, hot=first_token - begin)
    return Appended(first_token, end, reused=tuple(run), allocated=tuple(fresh), copy=copy)


def copied(core: CacheCore, sequence: TokenSequence) -> None:
    """The copy that the last append asked for is made."""
    _require_open(core, sequence)
    if sequence.copy is None:
        raise ValueError(f"copied: sequence {sequence.sequence_id} asked for no copy")
    source = sequence.copy.source
    sequence.copy = None
    give_back(core, source)


def written(core: CacheCore, sequence: TokenSequence, n_tokens: int, checksums: Sequence[bytes | None]) -> int:
    """Keys and values of the next ``n_tokens`` are in place in all layers; returns how many blocks became READY.

    checksums: of the blocks in ``sequence.completed_by(n_tokens)``.
    Errors: ValueError when that is more than was appended, or before a copy is made. Nothing is changed then.
    """
    _require_open(core, sequence)
    if not 0 <= n_tokens <= sequence.n_unwritten:
        raise ValueError(
            f"n_tokens: {n_tokens} written, sequence {sequence.sequence_id} waits for {sequence.n_unwritten}"
        )
    if sequence.copy is not None and n_tokens:
        raise ValueError(f"written: make the copy of block {sequence.copy.source} first, and say copied")
    first = sequence.n_written // sequence.block_tokens
    end = (sequence.n_written + n_tokens) // sequence.block_tokens
    if len(checksums) != end - first:
        raise ValueError(f"checksums: {len(checksums)} for {end - first} blocks")
    sequence.n_written += n_tokens
    sequence.checksums.update(zip(range(first, end), checksums, strict=True))
    return 0 if sequence.is_private else share_whole(core, sequence, sequence.n_written)


def share(core: CacheCore, sequence: TokenSequence, n_tokens: int) -> int:
    """Make the full blocks of the first ``n_tokens`` READY, as ``written`` does of others; returns how many now are.

    Errors: ValueError for more than are written.
    """
    _require_open(core, sequence)
    if not 0 <= n_tokens <= sequence.n_written:
        raise ValueError(f"n_tokens: {n_tokens} is not between 0 and the {sequence.n_written} that are written")
    return share_whole(core, sequence, n_tokens)


def fork(core: CacheCore, sequence: TokenSequence) -> TokenSequence:
    """A second sequence of the same tokens over the same blocks, the open one included. Cost: O(blocks)."""
    _require_written(core, sequence, "fork")
    twin = open_sequence(
        core,
        connection=sequence.connection,
        tenant=sequence.tenant,
        scope_id=sequence.scope_id,
        extras=sequence.extras,
        is_private=sequence.is_private,
    )
    twin.tokens, twin.hashes, twin.block_ids = sequence.tokens[:], sequence.hashes[:], sequence.block_ids[:]
    twin.checksums = dict(sequence.checksums)
    twin.n_ready, twin.n_written, twin.counted = sequence.n_ready, sequence.n_written, True
    for block_id in twin.block_ids:
        core.table.pin(block_id)
    return twin


def truncate(core: CacheCore, sequence: TokenSequence, n_tokens: int) -> None:
    """Keep the first ``n_tokens`` tokens; also how an engine gives up an append that it could not write.

    Blocks that were READY stay cached.
    Errors: ValueError for less than 0 or more than there are.
    """
    _require_open(core, sequence)
    if not 0 <= n_tokens <= len(sequence):
        raise ValueError(f"n_tokens: {n_tokens} is not between 0 and the {len(sequence)} of the sequence")
    size = sequence.block_tokens
    if sequence.copy is not None and n_tokens <= sequence.n_written:
        copy, sequence.copy = sequence.copy, None
        sequence.block_ids[sequence.n_written // size] = copy.source  # its pin goes back to the sequence
        give_back(core, copy.target)
    n_blocks = -(-n_tokens // size)
    gone = sequence.block_ids[n_blocks:]
    del sequence.block_ids[n_blocks:], sequence.tokens[n_tokens:], sequence.hashes[n_tokens // size :]
    sequence.n_written = min(sequence.n_written, n_tokens)
    sequence.n_ready = min(sequence.n_ready, n_blocks)
    for index in [index for index in sequence.checksums if index >= n_tokens // size]:
        del sequence.checksums[index]
    for block_id in reversed(gone):
        give_back(core, block_id)


def drop(core: CacheCore, sequence: TokenSequence) -> None:
    """End the sequence: its READY blocks stay cached, all else is free. Its host has let nobody go on writing."""
    _require_open(core, sequence)
    if sequence.has_grown and sequence.n_ready:
        touch_prefix(core, sequence.block_ids[sequence.n_ready - 1], sequence.tenant)
    if sequence.copy is not None:
        give_back(core, sequence.copy.source)
        sequence.copy = None
    for block_id in reversed(sequence.block_ids):
        give_back(core, block_id)
    sequence.block_ids.clear()
    del core.sequences[sequence.sequence_id]


def drop_sequences(core: CacheCore, connection: int) -> int:
    """The connection is gone: end all its sequences, return how many."""
    gone = [sequence for sequence in core.sequences.values() if sequence.connection == connection]
    for sequence in gone:
        drop(core, sequence)
    return len(gone)


def out_of_blocks(core: CacheCore, sequence: TokenSequence, n_blocks: int, why: Shortfall) -> OutOfBlocks:
    """The error that says who holds what."""
    reasons = {
        Shortfall.QUOTA: "the tenant is at its limit and none of its own blocks may leave",
        Shortfall.FULL: "all of the pool is in use or promised to others",
        Shortfall.SOON: "what is leaving did not leave in time",
    }
    reason = f"the pool has {core.n_blocks} in all" if n_blocks > core.n_blocks else reasons[why]
    return OutOfBlocks(reason, tenant=sequence.tenant, asked_blocks=n_blocks, holders=holders(core))


def _copied_first(core: CacheCore, sequence: TokenSequence) -> BlockId | None:
    """The open block of the sequence, where it may not be written in place."""
    if len(sequence) % sequence.block_tokens == 0:
        return None
    record = core.table[sequence.block_ids[-1]]
    in_place = record.state is BlockState.FILLING and record.pins == 1
    return None if in_place else sequence.block_ids[-1]


def _count(core: CacheCore, sequence: TokenSequence, *, asked: int, hot: int) -> None:
    """The first append is the prompt: what a tenant asked for. What follows is its answer."""
    if not sequence.counted:
        sequence.counted = True
        counters = core.count(sequence.tenant)
        counters.tokens = counters.tokens.plus(TokenCounts(asked=asked, hot=hot, missed=asked - hot))


def _require_open(core: CacheCore, sequence: TokenSequence) -> None:
    if core.sequences.get(sequence.sequence_id) is not sequence:
        raise OwnershipError(f"sequence {sequence.sequence_id} was dropped")


def _require_written(core: CacheCore, sequence: TokenSequence, what: str) -> None:
    _require_open(core, sequence)
    if sequence.n_unwritten or sequence.copy is not None:
        raise ValueError(
            f"{what}: {sequence.n_unwritten} tokens of sequence {sequence.sequence_id} are not written yet; write "
            "them, or truncate to before them"
        )
