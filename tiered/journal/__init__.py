"""What was resident, kept on disk for the next life of the worker."""
