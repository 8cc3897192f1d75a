"""The periodic work on the shared state: each a decision in plain code, and one runner that applies it."""
