"""A function in a process of its own, for what holds for a process as a whole: the files it has open or may open.

In the tests' own process other threads open and close files meanwhile, or cannot.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.worker_process import fork

END_S = 60.0


def alone(target: Callable[..., None], *arguments: object) -> None:
    """Run a module's function to its end, with no other thread beside it; fail if it does. Arguments are pickled."""
    process = fork(target, *arguments)
    process.join(END_S)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    assert code == 0, f"{target.__name__} ended with {code}; its traceback is on standard error"
