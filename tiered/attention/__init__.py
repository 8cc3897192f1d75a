"""Attention straight from the pool's blocks: read through block tables, written through slot mappings."""

from tiered.attention.batch import PagedBatch
from tiered.attention.paged import paged_attention
from tiered.attention.runs import Run, run_attention
from tiered.attention.write import write_kv

__all__ = ["PagedBatch", "Run", "paged_attention", "run_attention", "write_kv"]
