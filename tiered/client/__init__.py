"""What a connector may call: the CacheClient port, in this process or through the worker beside us."""
