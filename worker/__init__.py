"""The worker: owns one node's pool, serves the engines beside it and the workers elsewhere."""
