"""The TLS of a connection for values, as its URL's options say: the same as redis-py makes of them for control calls.

Which options there are, and which of their values can be no good, :mod:`tiered.redis_url` has said before.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from tiered.errors import TierUnavailable
from tiered.redis_url import CERT_REQS


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """options: as redis-py's parse_url gives them. Errors: TierUnavailable when a file or a list is not usable."""
    context = ssl.create_default_context()
    verify_mode = CERT_REQS[options.get("ssl_cert_reqs", "required")]
    context.check_hostname = verify_mode is not ssl.CERT_NONE and bool(options.get("ssl_check_hostname", True))
    context.verify_mode = verify_mode
    for flag in options.get("ssl_include_verify_flags", ()):
        context.verify_flags |= flag
    for flag in options.get("ssl_exclude_verify_flags", ()):
        context.verify_flags &= ~flag
    authorities = [options.get(f"ssl_ca_{kind}") for kind in ("certs", "path", "data")]
    try:
        if "ssl_certfile" in options:
            context.load_cert_chain(
                options["ssl_certfile"], options.get("ssl_keyfile"), password=options.get("ssl_password")
            )
        if any(authorities):
            context.load_verify_locations(*authorities)
        if "ssl_min_version" in options:
            context.minimum_version = ssl.TLSVersion(options["ssl_min_version"])
        if "ssl_ciphers" in options:
            context.set_ciphers(options["ssl_ciphers"])
    except OSError as error:
        raise TierUnavailable(f"redis.url: cannot use what a TLS option of it names: {error}") from error
    return context
