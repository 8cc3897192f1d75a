"""Prints docs/metrics.md."""

from __future__ import annotations

import sys

from tiered.metrics.page import page

if __name__ == "__main__":
    sys.stdout.write(page())
