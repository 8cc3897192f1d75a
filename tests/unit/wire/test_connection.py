"""A connection's deadlines hold in total, whatever the other side does, and an error leaves nothing half-used."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.alone import alone
from tiered.errors import ProtocolError, TieredError, TierTimeout, TierUnavailable
from tiered.wire.connection import Connection, connect_tcp, connect_unix
from tiered.wire.framing import PEER_REPLIES, PREFIX, encode
from tiered.wire.messages import FRAME_BYTES_MAX, WIRE_VERSION, Failure, PeerReply, Welcome

WELCOME = Welcome(b"d" * 32)
DEADLINE_S = 0.15
SLACK_S = 2.0
"""A trickling peer would hold us for far longer: its step is shorter than the deadline, and it has many."""


@pytest.fixture
def pair() -> Iterator[tuple[Connection[PeerReply], socket.socket]]:
    yield from _connected(*socket.socketpair())


@pytest.fixture(params=["unix", "tcp"])
def either(request: pytest.FixtureRequest) -> Iterator[tuple[Connection[PeerReply], socket.socket]]:
    """The kernel keeps deadlines in each family's own way."""
    if request.param == "unix":
        yield from _connected(*socket.socketpair())
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = connect_tcp("127.0.0.1", listener.getsockname()[1], timeout_s=5)
        there, _ = listener.accept()
    yield from _connected(here, there)


def _connected(here: socket.socket, there: socket.socket) -> Iterator[tuple[Connection[PeerReply], socket.socket]]:
    connection: Connection[PeerReply] = Connection(here, PEER_REPLIES, name="other")
    yield connection, there
    connection.close()
    there.close()


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process may open none until the end: for one that is :func:`alone`."""
    with open(os.devnull) as file:
        lowest_free = file.fileno()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def trickling(act: Callable[[], object], step_s: float) -> Iterator[None]:
    """Do something again and again until the test is over, or it can be done no more."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(step_s):
            try:
                act()
            except OSError:
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


def assert_ends_in_time(call: Callable[[], object], connection: Connection[PeerReply]) -> None:
    began = time.monotonic()
    with pytest.raises(TierTimeout, match="other"):
        call()
    assert time.monotonic() - began < SLACK_S
    assert connection.closed
    with pytest.raises(TierUnavailable):
        connection.receive(timeout_s=DEADLINE_S)


def test_a_reply_comes_back(either: tuple[Connection[PeerReply], socket.socket]) -> None:
    connection, there = either
    there.sendall(encode(Failure("k", "m")))
    assert connection.call(WELCOME, timeout_s=5) == Failure("k", "m")
    assert there.recv(100) == encode(WELCOME)


def test_a_reply_that_never_comes_is_a_timeout(either: tuple[Connection[PeerReply], socket.socket]) -> None:
    connection, _ = either
    assert_ends_in_time(lambda: connection.receive(timeout_s=DEADLINE_S), connection)


def test_a_reply_that_trickles_in_meets_the_deadline(either: tuple[Connection[PeerReply], socket.socket]) -> None:
    connection, there = either
    there.sendall(PREFIX.pack(1000, WIRE_VERSION))
    with trickling(lambda: there.send(b"x"), DEADLINE_S / 10):
        assert_ends_in_time(lambda: connection.receive(timeout_s=DEADLINE_S), connection)


def test_raw_bytes_that_trickle_in_meet_the_deadline(either: tuple[Connection[PeerReply], socket.socket]) -> None:
    connection, there = either
    view = memoryview(bytearray(1000))
    with trickling(lambda: there.send(b"x"), DEADLINE_S / 10):
        assert_ends_in_time(lambda: connection.receive_into(view, timeout_s=DEADLINE_S), connection)


def test_a_reply_with_a_descriptor_that_trickles_in_meets_the_deadline(
    pair: tuple[Connection[PeerReply], socket.socket],
) -> None:
    connection, there = pair
    there.sendall(PREFIX.pack(1000, WIRE_VERSION))
    with trickling(lambda: there.send(b"x"), DEADLINE_S / 10):
        assert_ends_in_time(lambda: connection.receive_with_descriptor(timeout_s=DEADLINE_S), connection)


def test_a_peer_that_reads_nothing_meets_the_deadline(either: tuple[Connection[PeerReply], socket.socket]) -> None:
    connection, _ = either
    large = Failure("k", "x" * (8 << 20))
    assert_ends_in_time(lambda: connection.send(large, timeout_s=DEADLINE_S), connection)


@pytest.mark.parametrize("reads", [False, True])
def test_raw_bytes_to_a_peer_that_reads_little_meet_the_deadline(
    either: tuple[Connection[PeerReply], socket.socket], reads: bool
) -> None:
    connection, there = either
    there.setblocking(False)

    def read_a_little() -> None:
        if reads:
            there.recv(1 << 20)

    parts = [b"header", memoryview(bytes(256 << 20))]
    with trickling(read_a_little, 1e-4):
        assert_ends_in_time(lambda: connection.send_raw(parts, timeout_s=DEADLINE_S), connection)


def test_raw_parts_arrive_in_order_and_whole(either: tuple[Connection[PeerReply], socket.socket]) -> None:
    connection, there = either
    large = os.urandom(3 << 20)
    words = memoryview(b"\1\0\0\0" * 9).cast("I")
    reader: Connection[PeerReply] = Connection(there, PEER_REPLIES, name="reader")
    got = memoryview(bytearray(2 + len(large) + words.nbytes))
    thread = threading.Thread(target=lambda: reader.receive_into(got, timeout_s=10))
    thread.start()
    connection.send_raw([b"", b"ab", memoryview(large), words], timeout_s=10)
    thread.join(10)
    assert bytes(got) == b"ab" + large + bytes(words.cast("B"))


@pytest.mark.parametrize("cut", [0, 1, 191, 192, 193, 500])
def test_bytes_into_two_places_come_in_whatever_pieces(
    either: tuple[Connection[PeerReply], socket.socket], cut: int
) -> None:
    connection, there = either
    data, header, body = os.urandom(192 + 1000), memoryview(bytearray(192)), memoryview(bytearray(1000))
    there.sendall(data[:cut])
    rest = threading.Timer(0.05, there.sendall, [data[cut:]])
    rest.start()
    connection.receive_into(header, body, timeout_s=10)
    rest.join(10)
    assert bytes(header) + bytes(body) == data


def test_two_places_that_trickle_full_meet_the_deadline(either: tuple[Connection[PeerReply], socket.socket]) -> None:
    connection, there = either
    views = memoryview(bytearray(4)), memoryview(bytearray(1000))
    with trickling(lambda: there.send(b"x"), DEADLINE_S / 10):
        assert_ends_in_time(lambda: connection.receive_into(*views, timeout_s=DEADLINE_S), connection)


def test_more_is_awaited_without_being_taken(either: tuple[Connection[PeerReply], socket.socket]) -> None:
    connection, there = either
    assert not connection.await_more(timeout_s=0.01)
    there.sendall(encode(WELCOME))
    assert connection.await_more(timeout_s=5)
    assert connection.receive(timeout_s=5) == WELCOME
    there.close()
    assert not connection.await_more(timeout_s=5)
    connection.close()
    assert not connection.await_more(timeout_s=5)


def test_a_peer_that_goes_in_the_middle_of_a_message_is_unavailable(
    pair: tuple[Connection[PeerReply], socket.socket],
) -> None:
    connection, there = pair
    there.sendall(encode(WELCOME)[:-1])
    there.close()
    with pytest.raises(TierUnavailable, match="other: closed"):
        connection.receive(timeout_s=5)
    assert connection.closed


@pytest.mark.parametrize(
    "data",
    [PREFIX.pack(2, WIRE_VERSION + 1), PREFIX.pack(0, WIRE_VERSION), PREFIX.pack(FRAME_BYTES_MAX + 1, WIRE_VERSION)],
)
@pytest.mark.parametrize("with_descriptor", [False, True])
def test_a_foreign_frame_closes_the_connection(
    pair: tuple[Connection[PeerReply], socket.socket], data: bytes, with_descriptor: bool
) -> None:
    connection, there = pair
    there.sendall(data)
    receive = connection.receive_with_descriptor if with_descriptor else connection.receive
    with pytest.raises(ProtocolError, match="other"):
        receive(timeout_s=5)
    assert connection.closed


def test_a_stranger_is_allowed_little(pair: tuple[Connection[PeerReply], socket.socket]) -> None:
    connection, there = pair
    there.sendall(PREFIX.pack(2000, WIRE_VERSION))
    with pytest.raises(ProtocolError, match="more than the 100 bytes"):
        connection.receive(timeout_s=5, bytes_max=100)


def test_a_descriptor_comes_with_its_message_and_the_next_message_stays(
    pair: tuple[Connection[PeerReply], socket.socket],
) -> None:
    connection, there = pair
    reader, writer = os.pipe()
    socket.send_fds(there, [encode(WELCOME) + encode(Failure("k", "m"))], [writer])
    message, descriptor = connection.receive_with_descriptor(timeout_s=5)
    assert message == WELCOME
    assert descriptor is not None
    os.write(descriptor, b"through")
    assert os.read(reader, 100) == b"through"
    assert connection.receive(timeout_s=5) == Failure("k", "m")
    for fd in (reader, writer, descriptor):
        os.close(fd)


def test_a_message_without_a_descriptor_is_just_a_message(
    pair: tuple[Connection[PeerReply], socket.socket],
) -> None:
    connection, there = pair
    there.sendall(encode(WELCOME))
    assert connection.receive_with_descriptor(timeout_s=5) == (WELCOME, None)


def test_a_message_in_pieces_keeps_its_descriptor(pair: tuple[Connection[PeerReply], socket.socket]) -> None:
    connection, there = pair
    data = encode(Failure("k", "m"))
    with open(os.devnull) as file:
        socket.send_fds(there, [data[:3]], [file.fileno()])
        there.sendall(data[3:])
        message, descriptor = connection.receive_with_descriptor(timeout_s=5)
    assert message == Failure("k", "m")
    assert descriptor is not None
    os.close(descriptor)


def test_a_descriptor_of_a_broken_message_is_closed() -> None:
    alone(receive_a_descriptor_with_a_broken_message)


def receive_a_descriptor_with_a_broken_message() -> None:
    with contextmanager(_connected)(*socket.socketpair()) as (connection, there), open(os.devnull) as file:
        before = set(os.listdir("/proc/self/fd"))
        socket.send_fds(there, [PREFIX.pack(3, WIRE_VERSION) + b"??"], [file.fileno()])
        with pytest.raises(ProtocolError):
            connection.receive_with_descriptor(timeout_s=5)
        assert len(os.listdir("/proc/self/fd")) == len(before) - 1  # the connection's own, which is closed


def test_nothing_listens_where_we_connect(tmp_path: Path) -> None:
    with pytest.raises(TierUnavailable, match="nowhere"):
        connect_unix(str(tmp_path / "nowhere"), timeout_s=1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(TierUnavailable, match=f"127.0.0.1:{port}"):
        connect_tcp("127.0.0.1", port, timeout_s=1)


def test_a_listener_with_a_full_backlog_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as stack:
        listener.bind(path)
        listener.listen(0)
        stack.enter_context(connect_unix(path, timeout_s=5))
        began = time.monotonic()
        with pytest.raises(TierUnavailable, match=path):
            connect_unix(path, timeout_s=0.2)
        assert 0.15 < time.monotonic() - began < SLACK_S
        late = threading.Timer(0.1, lambda: stack.enter_context(listener.accept()[0]))
        late.start()
        stack.enter_context(connect_unix(path, timeout_s=5))
        late.join(10)


def test_a_socket_path_too_long_is_an_error_of_ours() -> None:
    with pytest.raises(TieredError):
        connect_unix("/" + "x" * 200, timeout_s=1)


def test_a_descriptor_that_this_process_has_no_room_for_is_said_and_not_taken_for_none() -> None:
    alone(receive_a_descriptor_without_room)


def receive_a_descriptor_without_room() -> None:
    with contextmanager(_connected)(*socket.socketpair()) as (connection, there):
        with open(os.devnull) as file:
            socket.send_fds(there, [encode(WELCOME)], [file.fileno()])
        with no_more_files(), pytest.raises(TierUnavailable, match=r"other: .*Too many open files"):
            connection.receive_with_descriptor(timeout_s=5)
        assert connection.closed


def test_a_process_that_may_open_no_more_files_finds_nobody_there(tmp_path: Path) -> None:
    alone(connect_without_room, str(tmp_path / "s"))


def connect_without_room(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        unix.listen()
        with no_more_files():
            with pytest.raises(TierUnavailable, match=f"^{path}: Too many open files"):
                connect_unix(path, timeout_s=5)
            with pytest.raises(TierUnavailable, match="Too many open files"):
                connect_tcp("127.0.0.1", tcp.getsockname()[1], timeout_s=5)


def test_what_cannot_be_a_name_is_nobody() -> None:
    with pytest.raises(TierUnavailable, match="no name of a machine"):
        connect_tcp("...", 1, timeout_s=5)


@pytest.mark.parametrize("timeout_s", [0.0, 5.0])
def test_a_connection_that_could_not_be_made_leaves_no_file_open(tmp_path: Path, timeout_s: float) -> None:
    alone(connect_to_nobody, str(tmp_path / "nobody"), timeout_s)


def connect_to_nobody(path: str, timeout_s: float) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(TierUnavailable):
        connect_unix(path, timeout_s=timeout_s)
    assert os.listdir("/proc/self/fd") == before
