"""Fetches the demo's model into the volume of docker-compose.yml unless it is there."""

import sys

from tiered.cli.model import ensure_demo_model
from tiered.errors import ConfigError

try:
    print(f"model: {ensure_demo_model()}")
except ConfigError as error:
    print(f"model: {error}", file=sys.stderr)
    sys.exit(2)
