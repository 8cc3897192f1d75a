"""What this replica knows of the cluster, and how it comes to know it."""
