"""An OpenAI-compatible server over one transformers model whose KV is kept in the cache. One answer at a time."""
