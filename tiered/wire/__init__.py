"""How engines talk to their worker and workers to each other: messages, frames, connections."""
