"""The shared state in Redis: membership, directory of owners, ledger of bytes, tenants. One subject per file."""
