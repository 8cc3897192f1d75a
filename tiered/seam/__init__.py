"""Between decisions and moving bytes: bounded queues one way, completions the other."""
