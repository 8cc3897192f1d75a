"""Traces in, hit ratios out: the same core as a worker's, over a pool without bytes."""
