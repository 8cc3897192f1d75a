"""Asking nodes: who answers, who does not and why, and what is kept in between."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec
import pytest

import coordinator.view.nodes_client
from coordinator.view.nodes_client import Heard, NodesClient
from tests.support.fake_node import FakeNode, fake_node
from tests.unit.coordinator.builders import node_info
from tiered.types import BlockHash, Epoch, Happening, NodeStats, NodeView
from tiered.wire.messages import Explain

BLOCK = BlockHash(b"b" * 32)


def view_of(name: str, port: int, *, epoch: int = 1) -> NodeView:
    info = msgspec.structs.replace(node_info(name), peer_host="127.0.0.1", peer_port=port)
    return NodeView(info=info, epoch=Epoch(epoch), lease_left_s=5.0, stats=NodeStats())


def ask(client: NodesClient, *nodes: NodeView) -> list[Heard]:
    return client.ask(nodes, lambda _: Explain(BLOCK))


@pytest.fixture
def client() -> Iterator[NodesClient]:
    with closing(NodesClient("s3", answer_s=1.0, round_s=3.0)) as client:
        yield client


@contextmanager
def mute() -> Iterator[int]:
    """A port on which connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@contextmanager
def remembering(name: str, **fields: object) -> Iterator[tuple[FakeNode, int]]:
    with fake_node(name, None, **fields) as (node, port):  # type: ignore[arg-type]
        node.ring.turn([Happening("stored", BLOCK, f"tenant-of-{name}")])
        yield node, port


def test_many_are_asked_at_once_and_each_answers_for_itself(client: NodesClient) -> None:
    with remembering("n1") as (_, one), remembering("n2") as (_, two):
        heard = ask(client, view_of("n1", one), view_of("n2", two))
    assert [h.told.events[0].happening.tenant for h in heard if h.told] == ["tenant-of-n1", "tenant-of-n2"]


def test_a_connection_is_kept_and_one_that_the_node_has_closed_is_made_anew(client: NodesClient) -> None:
    with remembering("n1") as (_, port):
        node = view_of("n1", port)
        assert ask(client, node)[0].told is not None
        [[kept]] = client._idle.values()
        assert ask(client, node)[0].told is not None
        assert list(client._idle.values()) == [[kept]]
        kept.sock.shutdown(socket.SHUT_RDWR)
        assert ask(client, node)[0].told is not None
        assert client._idle != {}
        assert list(client._idle.values()) != [[kept]]


def test_a_node_that_says_nothing_costs_its_deadline_once_and_nobody_else_anything(client: NodesClient) -> None:
    with mute() as port, remembering("n1") as (_, good):
        began = time.monotonic()
        silent, heard = ask(client, view_of("mute", port), view_of("n1", good))
        assert time.monotonic() - began < 2.5
        assert (silent.told, heard.told is not None) == (None, True)
        assert "no answer within" in silent.reason
        began = time.monotonic()
        assert ask(client, view_of("mute", port))[0].reason == silent.reason
        assert time.monotonic() - began < 0.5


def test_very_many_mute_nodes_are_given_up_together(client: NodesClient) -> None:
    with mute() as port:
        began = time.monotonic()
        heard = ask(client, *(view_of(f"n{i}", port) for i in range(100)))
        assert time.monotonic() - began < 5.0
    assert all(each.told is None and each.reason for each in heard)


def test_a_port_where_nobody_listens_is_said_to_be_so(client: NodesClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    [heard] = ask(client, view_of("n1", port))
    assert heard.told is None
    assert "refused" in heard.reason.lower()


def test_a_coordinator_with_another_secret_is_told_which_setting_to_mend() -> None:
    with closing(NodesClient("wrong", answer_s=1.0)) as client, remembering("n1") as (node, port):
        [heard] = ask(client, view_of("n1", port))
        assert "cluster.secret" in heard.reason
        assert node.n_asked == 0


def test_another_node_or_another_life_at_that_address_is_not_taken_for_the_one(client: NodesClient) -> None:
    with remembering("n1") as (_, port):
        another, later = ask(client, view_of("n2", port), view_of("n1", port, epoch=2))
    assert (another.told, later.told) == (None, None)
    assert "node 'n1' answers there now" in another.reason
    assert "epoch 2 has ended, this is 1" in later.reason


def test_what_answers_without_knowing_the_secret_is_not_believed(client: NodesClient) -> None:
    with remembering("n1", secret="other") as (_, port):
        [heard] = ask(client, view_of("n1", port))
    assert heard.told is None


def test_a_node_that_breaks_off_is_named_with_the_reason(client: NodesClient) -> None:
    with remembering("n1") as (node, port):
        node.broken = True
        [heard] = ask(client, view_of("n1", port))
    assert (heard.told, bool(heard.reason)) == (None, True)


def test_kept_connections_are_bounded(client: NodesClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.view.nodes_client, "IDLE_MAX", 3)
    with remembering("n1") as (node, port):
        for epoch in range(1, 12):
            node.life = Epoch(epoch)
            assert ask(client, view_of("n1", port, epoch=epoch))[0].told is not None
            assert client._n_idle == sum(len(idle) for idle in client._idle.values()) <= 3


def test_nobody_to_ask_is_no_error(client: NodesClient) -> None:
    assert ask(client) == []
