"""What more memory would buy each tenant: miss-ratio curves from a sample of the lookups."""
