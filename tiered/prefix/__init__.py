"""From block hashes to resident blocks."""
