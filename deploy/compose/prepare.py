"""Makes the secrets of docker-compose.yml, each in a volume of its own, and leaves those that are there as they are.

    docker compose run --rm prepare                    what every start does
    docker compose run --rm prepare --renew admin      makes one anew; then restart who reads it (docs/compose.md)

A service sees the volumes of the secrets that it needs, and no other.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
from pathlib import Path
from typing import Final

ROOT: Final = Path("/prepare")

SECRETS: Final = {
    "redis": "password",
    "cluster": "secret",
    "admin": "token",
    "read": "token",
    "grafana": "password",
}
"""A volume, and the file in it."""

NODES: Final = [f"cluster-{n}" for n in range(1, 7)] + [f"replica-{n}" for n in (1, 2)]
"""Folders of the Redis servers that are not `redis` itself."""

TENANTS: Final = ("acme", "globex")
"""Who has an API key at the engines to begin with; keys/keys.toml may be edited."""

BYTES: Final = 32


def main() -> None:
    parser = argparse.ArgumentParser(prog="prepare")
    parser.add_argument("--renew", nargs="+", choices=[*SECRETS, "keys"], default=[], help="make these anew")
    renew = parser.parse_args().renew
    for volume, name in SECRETS.items():
        keep(ROOT / volume / name, secrets.token_urlsafe(BYTES), anew=volume in renew)
    password = (ROOT / "redis" / "password").read_text(encoding="utf-8")
    keep(ROOT / "redis" / "auth.conf", f"requirepass {password}\nmasterauth {password}\n", anew=True)
    for node in NODES:
        (ROOT / "redis-nodes" / node).mkdir(mode=0o700, exist_ok=True)
    table = ROOT / "keys" / "keys.toml"
    if not table.exists() or "keys" in renew:
        keys = {tenant: secrets.token_urlsafe(BYTES) for tenant in TENANTS}
        for tenant, key in keys.items():
            keep(ROOT / "clients" / tenant, key, anew=True)
        hashed = [f'"sha256:{hashlib.sha256(key.encode()).hexdigest()}" = "{who}"\n' for who, key in keys.items()]
        keep(table, f"[keys]\n{''.join(hashed)}", anew=True)  # the last, so that what was cut off is done again


def keep(file: Path, text: str, *, anew: bool) -> None:
    """Make the file, whole and readable to this user alone, when it is not there or is wanted anew."""
    if file.exists() and not anew:
        return
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with open(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(descriptor)
    new.rename(file)
    print(f"prepare: made {file.relative_to(ROOT)}", flush=True)


if __name__ == "__main__":
    main()
