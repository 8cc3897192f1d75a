"""Which block of a tenant leaves first. A policy proposes ids; the table disposes."""
