"""Clients that find their worker in a folder, against real workers."""

from __future__ import annotations

from contextlib import closing

from tests.support.content import SCOPE, prompt, save
from tests.support.small_cluster import SmallCluster
from tests.support.worker_process import until
from tiered.client.remote import RemoteClient


def test_two_engines_have_a_worker_each_and_keep_it_over_a_kill(cluster: SmallCluster) -> None:
    first, _ = cluster.start("w1", "w2")
    with (
        closing(RemoteClient.attach_in_folder(cluster.directory, SCOPE)) as one,
        closing(RemoteClient.attach_in_folder(cluster.directory, SCOPE)) as two,
    ):
        until(lambda: one.attached and two.attached, "both are attached", within_s=30)
        assert {one.node, two.node} == {"w1", "w2"}
        mine = one if one.node == "w1" else two
        first.kill()
        assert save(mine, prompt(1, 4)).reason == "unavailable"
        cluster.restart("w1")
        until(lambda: mine.attached, "attached again", within_s=30)
        assert mine.node == "w1"
        assert save(mine, prompt(1, 4)).n_stored == 4


def test_a_client_that_is_closed_leaves_its_seat_to_the_next(cluster: SmallCluster) -> None:
    cluster.start("w1", "w2")
    with closing(RemoteClient.attach_in_folder(cluster.directory, SCOPE)) as one:
        until(lambda: one.attached, "it is attached", within_s=30)
        node = one.node
    with closing(RemoteClient.attach_in_folder(cluster.directory, SCOPE)) as next_one:
        until(lambda: next_one.attached, "the next is attached", within_s=30)
        assert next_one.node == node
