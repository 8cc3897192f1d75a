"""What a connection has in flight while values are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest

from tiered.codec.frame import HEADER_BYTES
from tiered.tiers.redis.route import Parcel
from tiered.tiers.redis.values import WINDOW_BYTES, WINDOW_VALUES, Fetched, ValueToRead, _window_of_gets

_KIB = 1 << 10
_MIB = 1 << 20


class _Recording:
    """A connection that answers each GET at once and remembers what was asked for and not yet read."""

    def __init__(self, sizes: dict[bytes, int]) -> None:
        self._sizes = sizes
        self._asked: deque[bytes] = deque()
        self.sends: list[int] = []
        self.values_max = 0
        self.bytes_max = 0

    def send_gets(self, keys: Sequence[bytes], *, asking: bool) -> None:
        self.sends.append(len(keys))
        self._asked.extend(keys)
        self.values_max = max(self.values_max, len(self._asked))
        self.bytes_max = max(self.bytes_max, sum(self._sizes[key] for key in self._asked))

    def read_value(self, header: memoryview, body: memoryview, *, asking: bool) -> int:
        assert self._sizes[self._asked.popleft()] == body.nbytes
        return body.nbytes


def _read(n_values: int, nbytes: int) -> _Recording:
    keys = [b"%d" % i for i in range(n_values)]
    connection = _Recording(dict.fromkeys(keys, nbytes))
    wanted = [ValueToRead(key, memoryview(bytearray(nbytes))) for key in keys]
    parcel = Parcel("", list(range(n_values)), asking=False)
    header = memoryview(bytearray(HEADER_BYTES))
    came = list(_window_of_gets(connection, parcel, 0, wanted, header))  # type: ignore[arg-type]
    assert [received.index for received in came if received and received.fetched is Fetched.HERE] == parcel.places
    return connection


@pytest.mark.parametrize(
    ("n_values", "nbytes"), [(0, 1), (1, 0), (7, 1), (100, 64), (33, 360 * _KIB), (20, 2 * _MIB), (9, 3 * _MIB)]
)
def test_no_more_than_a_window_is_ever_in_flight(n_values: int, nbytes: int) -> None:
    connection = _read(n_values, nbytes)
    assert sum(connection.sends) == n_values
    assert connection.values_max <= WINDOW_VALUES
    assert connection.bytes_max <= WINDOW_BYTES


def test_gets_of_small_values_go_out_several_in_one_send() -> None:
    assert _read(40, 360 * _KIB).sends == [8, 4, 4, 4, 4, 4, 4, 4, 4]


def test_a_value_is_asked_for_before_the_one_ahead_of_it_has_come() -> None:
    assert _read(9, 3 * _MIB).values_max == 2
