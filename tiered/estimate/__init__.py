"""How long it will take: what fetching costs from where, what computing costs, and which of both is quicker."""
