"""Who is charged for bytes, and who gives back first."""
