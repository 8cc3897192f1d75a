"""Translate one engine to the CacheClient port, and nothing more. One folder an engine."""
