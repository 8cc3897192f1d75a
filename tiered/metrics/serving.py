"""The series of ``tiered serve``."""

from __future__ import annotations

from typing import Final

from tiered.metrics.series import BUILD, Catalogue

SERVING: Final = Catalogue("serve")

SERVING.add(BUILD)
SERVING.counter("tiered_serve_requests_total", "Requests; status 499: the client went away", "endpoint", "status")
SERVING.counter(
    "tiered_serve_prompt_tokens_total",
    "Prompt tokens by where their KV was found: `hot`, `peer`, `redis`, or `computed`: nowhere",
    "source",
)
SERVING.counter("tiered_serve_completion_tokens_total", "Tokens generated")
SERVING.histogram("tiered_serve_queue_seconds", "How long requests waited")
SERVING.histogram("tiered_serve_time_to_first_token_seconds", "From the request to its first token, waiting included")
SERVING.histogram("tiered_serve_time_per_token_seconds", "Between two tokens of one answer")
SERVING.gauge("tiered_serve_queue_length", "Requests that wait for the model")
SERVING.gauge("tiered_serve_ready", "1 while the model is loaded and requests are taken")
SERVING.gauge("tiered_serve_cache_attached", "1 while there is a cache to ask")
