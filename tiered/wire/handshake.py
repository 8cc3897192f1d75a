"""The asking side's part of a peer connection's first three messages.

Owns their order and what each refusal is called; does not know what the connection is for. Nothing is asked of a
server that has not proven that it knows the cluster secret: its blocks would be no better than its word.
"""

from __future__ import annotations

import time
from typing import Final

from tiered.errors import ProtocolError, TierTimeout, TierUnavailable
from tiered.types import NO_EPOCH
from tiered.wire.auth import Handshake, Side, new_nonce, prove, proves
from tiered.wire.connection import Connection
from tiered.wire.messages import WIRE_MINOR, Challenge, Failure, PeerReply, Proof, Welcome

HANDSHAKE_BYTES_MAX: Final = 1_024
"""Of each message: what a stranger says is not worth more memory."""


class PeerRefused(TierUnavailable):
    """One side will not talk to the other. reason: node (another one answers there), epoch, secret, busy, or refused
    for what a later version may say."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def introduce(
    connection: Connection[PeerReply], *, secret: str, asking: str, serving: str, epoch: int, ends_at: float
) -> None:
    """Prove ourselves to this life of that node, and have it prove itself; each learns the other's minor version.

    ends_at: of the monotonic clock.

    Errors: PeerRefused, TierUnavailable, TierTimeout, ProtocolError; the connection is closed then.
    """
    name = connection.name
    try:
        challenge = connection.receive(timeout_s=left_until(ends_at, name), bytes_max=HANDSHAKE_BYTES_MAX)
        if not isinstance(challenge, Challenge):
            raise refusal(name, challenge)
        if challenge.node != serving:
            raise PeerRefused("node", f"{name}: node {challenge.node!r} answers there now")
        if challenge.epoch != epoch:
            raise PeerRefused("epoch", f"{name}: {not_that_life(epoch, challenge.epoch)}")
        connection.minor = challenge.minor
        handshake = Handshake(asking, serving, asking_nonce=new_nonce(), serving_nonce=challenge.nonce)
        if not handshake.is_sound():
            raise ProtocolError(f"{name}: a nonce of {len(challenge.nonce)} bytes")
        proof = Proof(asking, prove(secret, handshake, Side.ASKING), handshake.asking_nonce, WIRE_MINOR)
        connection.send(proof, timeout_s=left_until(ends_at, name))
        welcome = connection.receive(timeout_s=left_until(ends_at, name), bytes_max=HANDSHAKE_BYTES_MAX)
        if not isinstance(welcome, Welcome):
            raise refusal(name, welcome)
        if not proves(secret, handshake, Side.SERVING, welcome.digest):
            raise PeerRefused("secret", f"{name}: it does not know the cluster secret")
    except BaseException:
        connection.close()
        raise


def not_that_life(asked: int, current: int) -> str:
    """Why a node whose epoch is ``current`` gives nothing of another one."""
    if current == NO_EPOCH:
        return "the node is fenced: its lease has lapsed"
    return f"epoch {asked} has ended, this is {current}"


def refusal(name: str, reply: PeerReply) -> PeerRefused | ProtocolError:
    """What a reply means that is not the one that was hoped for."""
    if not isinstance(reply, Failure):
        return ProtocolError(f"{name}: unexpected {type(reply).__name__}")
    reason = reply.kind if reply.kind in ("secret", "epoch", "busy") else "refused"
    return PeerRefused(reason, f"{name}: {reply.message}")


def left_until(ends_at: float, name: str) -> float:
    """Seconds until then. Errors: TierTimeout when there are none."""
    left = ends_at - time.monotonic()
    if left <= 0:
        raise TierTimeout(f"{name}: the time for it is over")
    return left
