"""Room at the peer port: a flood of strangers, or of peers that keep connections, shuts nobody out."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from worker.peer_slots import LEAVING_MAX, PROVEN_MAX, STRANGERS_MAX, PeerSlots

Connect = Callable[[], socket.socket]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Our end of a new connection; the other end stays open."""
    pairs: list[tuple[socket.socket, socket.socket]] = []

    def make() -> socket.socket:
        pairs.append(socket.socketpair())
        return pairs[-1][0]

    yield make
    for pair in pairs:
        for end in pair:
            end.close()


def told_to_go(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


def proven(slots: PeerSlots, connect: Connect) -> socket.socket:
    sock = connect()
    assert slots.admit(sock, "a")
    assert slots.promote(sock)
    return sock


def test_the_oldest_stranger_gives_way_to_the_next(connect: Connect) -> None:
    slots = PeerSlots()
    first = [connect() for _ in range(STRANGERS_MAX)]
    assert all(slots.admit(sock, "a") for sock in first)
    assert not any(told_to_go(sock) for sock in first)
    assert slots.admit(connect(), "a")
    assert [told_to_go(sock) for sock in first] == [True, *[False] * (STRANGERS_MAX - 1)]
    assert not slots.promote(first[0])
    assert slots.promote(first[1])


def test_a_crowd_from_one_address_makes_room_for_one_from_another(connect: Connect) -> None:
    slots = PeerSlots()
    lone = connect()
    assert slots.admit(lone, "b")
    crowd = [connect() for _ in range(STRANGERS_MAX + 20)]
    assert all(slots.admit(sock, "a") for sock in crowd)
    assert not told_to_go(lone)
    assert sum(told_to_go(sock) for sock in crowd) == 21
    assert slots.promote(lone)


def test_strangers_without_end_take_no_place_of_a_proven_peer(connect: Connect) -> None:
    slots = PeerSlots()
    busy = [proven(slots, connect) for _ in range(PROVEN_MAX)]
    for _ in range(200):
        stranger = connect()
        if not slots.admit(stranger, "a"):
            break
    else:
        raise AssertionError("threads without bound")
    assert not any(told_to_go(sock) for sock in busy)


def test_of_those_told_to_go_only_so_many_are_waited_for_and_their_places_come_back(connect: Connect) -> None:
    slots = PeerSlots()
    bound = PROVEN_MAX + STRANGERS_MAX + LEAVING_MAX
    strangers = [connect() for _ in range(bound)]
    assert all(slots.admit(sock, "a") for sock in strangers)
    assert not slots.admit(connect(), "a")
    assert sum(told_to_go(sock) for sock in strangers) == bound - STRANGERS_MAX
    slots.leave(strangers[0])
    assert slots.admit(connect(), "a")


def test_the_peer_that_has_been_quiet_for_longest_gives_way_to_one_that_asks(connect: Connect) -> None:
    slots = PeerSlots()
    peers = [proven(slots, connect) for _ in range(PROVEN_MAX)]
    newcomer = connect()
    assert slots.admit(newcomer, "a")
    assert not slots.promote(newcomer)  # all of them are being served
    slots.leave(newcomer)
    for sock in (peers[3], peers[1], peers[2]):
        slots.quiet(sock)
    slots.busy(peers[3])
    proven(slots, connect)
    assert [told_to_go(sock) for sock in peers[:4]] == [False, True, False, False]
    assert not any(told_to_go(sock) for sock in peers[4:])


def test_who_leaves_is_forgotten_whatever_it_was(connect: Connect) -> None:
    slots = PeerSlots()
    for _ in range(3 * PROVEN_MAX):
        sock = proven(slots, connect)
        slots.quiet(sock)
        slots.leave(sock)
        slots.quiet(sock)  # its thread may still be on its way out
        slots.leave(sock)
    peers = [proven(slots, connect) for _ in range(PROVEN_MAX)]
    assert not any(told_to_go(sock) for sock in peers)


def test_at_the_end_all_are_told_to_go(connect: Connect) -> None:
    slots = PeerSlots()
    peer, stranger, quiet = proven(slots, connect), connect(), proven(slots, connect)
    slots.admit(stranger, "a")
    slots.quiet(quiet)
    slots.end_all()
    assert all(told_to_go(sock) for sock in (peer, stranger, quiet))
