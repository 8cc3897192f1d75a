#!/usr/bin/env python3
"""``healthcheck PORT PATH``: exit code 0 when GET answers 200 within two seconds, else 1 and why."""

import sys
from http.client import HTTPConnection, HTTPException


def main() -> int:
    port, path = sys.argv[1:]
    try:
        connection = HTTPConnection("127.0.0.1", int(port), timeout=2)
        connection.request("GET", path)
        answer = connection.getresponse()
        print(answer.status, answer.read(200).decode("utf-8", "replace"))
    except (OSError, HTTPException) as error:
        print(error)
        return 1
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
