"""How a block looks outside a pool: one header and its bytes."""
