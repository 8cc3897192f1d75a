"""``python -m worker``."""

from worker.cli import main

main()
