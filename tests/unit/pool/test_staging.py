from __future__ import annotations

import threading

from tiered.pool.staging import StagingBuffers


def test_each_buffer_is_lent_once_at_a_time() -> None:
    staging = StagingBuffers(2, 8)
    one, other = staging.lend(timeout_s=0), staging.lend(timeout_s=0)
    assert one is not None
    assert other is not None
    one[:] = b"1" * 8
    other[:] = b"2" * 8
    assert bytes(one) == b"1" * 8
    assert staging.lend(timeout_s=0) is None
    staging.give_back(one)
    assert staging.lend(timeout_s=0) is one


def test_who_waits_gets_what_is_given_back() -> None:
    staging = StagingBuffers(1, 8)
    buffer = staging.lend(timeout_s=0)
    assert buffer is not None
    got: list[memoryview | None] = []
    waiter = threading.Thread(target=lambda: got.append(staging.lend(timeout_s=10)))
    waiter.start()
    staging.give_back(buffer)
    waiter.join(10)
    assert got == [buffer]
