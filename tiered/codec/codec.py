"""What a codec is: it makes a block's bytes fewer on their way to Redis, and gives them back on the way up.

Codecs know bytes and layouts; not Redis, not headers, and not who chose them.
"""

from __future__ import annotations

from typing import Protocol

from tiered.layout import KvLayout


class Codec(Protocol):
    """One way to store a block; stateless, so any number of threads may use it at once."""

    @property
    def name(self) -> str:
        """What the header of a value says; it never changes its meaning."""

    @property
    def is_exact(self) -> bool:
        """Whether every bit comes back."""

    def refusal(self, layout: KvLayout) -> str:
        """Why blocks of this layout cannot be stored so, in a few words; empty if they can."""

    def encode(self, payload: memoryview, layout: KvLayout) -> bytes | None:
        """What to store; None if this block cannot be, such as one with a NaN in it, or would not shrink.

        Units: payload.nbytes == layout.block_bytes; payload is contiguous, of bytes.
        """

    def decode(self, stored: memoryview, out: memoryview, layout: KvLayout) -> None:
        """Fill ``out`` from what encode() gave.

        That may lie in ``out``: all of it is read before anything is written.
        Errors: IntegrityError with reason "decode" for anything that encode() cannot have given for this layout;
        ``out`` may then hold anything.
        """
