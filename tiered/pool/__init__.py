"""The memory of the hot tier: one tensor of blocks, and how another process gets to see it."""
