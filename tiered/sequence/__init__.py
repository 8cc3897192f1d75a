"""One request's tokens and the blocks that hold them."""
