"""The life of a block: states, records, the free list, and the only writer of them all."""
