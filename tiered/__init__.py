"""Tiered: a distributed, tiered, multi-tenant KV cache for LLM inference."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tiered-kv")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
