"""``tiered selftest``: proofs on the live cluster, with blocks of its own that it takes away again."""

from tiered.cli.selftest.command import selftest_app

__all__ = ["selftest_app"]
