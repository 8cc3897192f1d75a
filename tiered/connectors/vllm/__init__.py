"""vLLM: connectors that attach it to a worker, or to the Redis tier alone.

vLLM imports this package and asks it for ``TieredConnector``; only then is vLLM imported in turn.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "TieredConnector":
        from tiered.connectors.vllm.connector import TieredConnector

        return TieredConnector
    raise AttributeError(f"{__name__} has no {name}")
