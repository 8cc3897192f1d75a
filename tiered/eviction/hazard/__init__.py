"""The project's own policy: what returns is learned, and what returns soonest for its place is kept."""
