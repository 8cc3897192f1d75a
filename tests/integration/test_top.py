"""``tiered top`` and ``tiered stats --watch`` beside real processes: the API's numbers, what dies, how each ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing

import pytest
from textual.pilot import Pilot

from tests.integration.processes import Place, temporary_place, until
from tests.support.content import prompt, save, take
from tests.support.coordinator_process import CoordinatorProcess, coordinators
from tests.support.small_cluster import SmallCluster
from tests.support.terminal import drive, keep_screenshot, screen_lines, screen_text, shows
from tiered.cli.api import CoordinatorClient
from tiered.cli.output import human_bytes, human_count
from tiered.cli.top.app import TopApp
from tiered.cli.top.sample import Cluster
from tiered.cli.top.words import duration
from tiered.cluster.embedded import EmbeddedServer
from tiered.types import TenantId

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal")

LEASE_S = 2.0
RED, BLUE = TenantId("red"), TenantId("blue")
END_S = 15.0


@pytest.fixture
def coordinator(cluster: SmallCluster) -> Iterator[CoordinatorProcess]:
    with replicas_of(cluster, 1) as [started]:
        yield started


def replicas_of(cluster: SmallCluster, n: int) -> AbstractContextManager[list[CoordinatorProcess]]:
    settings = ("cluster.snapshot_interval_s=0.2", "cluster.sweep_interval_s=30")
    return coordinators(n, cluster.server, cluster.namespace, cluster.directory, *settings)


@pytest.fixture(scope="module")
def lonely() -> Iterator[str]:
    """A coordinator without workers, over a server of its own; tests leave it alone."""
    with (
        temporary_place() as made,
        EmbeddedServer.start(made.directory, maxmemory_bytes=64 << 20) as server,
        coordinators(1, server, "lonely", made.directory) as [started],
    ):
        yield started.url


@pytest.fixture
def busy(cluster: SmallCluster) -> SmallCluster:
    """Two workers; red found what it saved, hot here and at a peer there, and blue found nothing."""
    cluster.start("n1", "n2", settings=[f"cluster.lease_ttl_s={LEASE_S}", "cluster.heartbeat_s=0.25"])
    cluster.wait_acquainted()
    tokens = prompt(1, 20)
    with cluster.attach("n1") as here:
        save(here, tokens, tenant=RED)
        take(here, tokens, tenant=RED)
        take(here, prompt(2, 5), tenant=BLUE)
    cluster.wait_announced("n1", 20)
    with cluster.attach("n2") as there:
        take(there, tokens, tenant=RED)
    return cluster


def test_the_numbers_on_the_screen_are_the_api_s(busy: SmallCluster, coordinator: CoordinatorProcess) -> None:
    with CoordinatorClient(coordinator.url) as api, closing(Cluster(lambda: [coordinator.url])) as source:
        until(lambda: api.stats().tokens.asked == 45 * 16, "the coordinator has heard of all that was asked")
        until(lambda: api.stats().leader is not None, "somebody leads")
        app = TopApp(source, source.sample(), every_s=0.5)

        async def steps(app: TopApp, pilot: Pilot[None]) -> None:
            await shows(pilot, lambda: app.picture.flow.seconds > 0, "a second sample")
            stats, tenants, nodes = api.stats(), api.tenants(), api.nodes()
            overview = screen_text(app)
            assert stats.tokens.peer > 0
            for name in ("asked", "hot", "peer", "redis", "missed"):
                count = human_count(getattr(stats.tokens, name))
                assert re.search(rf"^{name} .* {count}( |$)", overview, re.MULTILINE), overview
            assert (
                f"{human_bytes(stats.tiers.hot.bytes)} of {human_bytes(stats.tiers.hot.capacity_bytes)}" in overview
            )
            assert "2 alive, 0 lost" in overview
            assert f"leader  {stats.leader}" in overview
            [saved] = [line for line in screen_lines(app) if line.startswith("saved")]
            assert stats.saved_prefill_s is not None
            assert saved.split("prefill")[1].split()[:2] == duration(stats.saved_prefill_s).split()
            assert api.alerts() == app.picture.sample.alerts == []
            assert "alerts  none" in overview
            keep_screenshot(app, "real-overview")
            await pilot.press("2", "less_than_sign")
            await pilot.pause()
            for tenant in tenants:
                [line] = [each for each in screen_lines(app) if each[2:].startswith(tenant.policy.tenant)]
                assert human_bytes(tenant.hot.used_bytes) in line
            await pilot.press("end", "enter")  # red is the last of blue, default, red
            await shows(pilot, lambda: "hot on n2" in screen_text(app), "where red's bytes are")
            for row in api.usage(tenant=RED):
                assert f"{human_bytes(row.bytes):>12}" in screen_text(app)
            await pilot.press("escape", "3")
            await pilot.pause()
            for node in nodes:
                assert re.search(rf"{node.node} +alive +{node.epoch} ", screen_text(app))
            await pilot.press("down", "enter")
            await shows(pilot, lambda: "asking" not in screen_text(app), "what n2 holds")
            assert f"{human_count(node.pool_blocks - node.free_blocks)} of {human_count(node.pool_blocks)}" in (
                screen_text(app)
            )

        drive(app, steps, size=(120, 40))


def test_traffic_between_peers_is_counted_where_it_came_and_went(
    busy: SmallCluster, coordinator: CoordinatorProcess
) -> None:
    with CoordinatorClient(coordinator.url) as api:

        def bytes_moved() -> tuple[int, int]:
            nodes = {node.node: node.traffic for node in api.nodes()}
            return nodes["n1"].peer_sent_bytes, nodes["n2"].peer_received_bytes

        until(lambda: min(bytes_moved()) == 20 * 8192, "both have told of it")
        assert bytes_moved()[0] == bytes_moved()[1]


def test_a_killed_worker_is_lost_within_its_lease(busy: SmallCluster, coordinator: CoordinatorProcess) -> None:

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await shows(pilot, lambda: "2 alive, 0 lost" in screen_text(app), "both are alive")
        busy.workers["n2"].kill()
        killed = time.monotonic()
        await shows(pilot, lambda: "!! Worker n2 is lost" in screen_text(app), "it is lost")
        assert time.monotonic() - killed < LEASE_S + 2.0  # and what reading and drawing take on a busy machine
        # The nodes of that sample were read before its alerts.
        await shows(pilot, lambda: "1 alive, 1 lost" in screen_text(app), "it is counted")
        await pilot.press("3")
        await pilot.pause()
        assert re.search(r"n2 +LOST", screen_text(app))
        keep_screenshot(app, "real-lost")

    with closing(Cluster(lambda: [coordinator.url])) as source:
        drive(TopApp(source, source.sample(), every_s=0.2), steps)


def test_a_coordinator_that_is_killed_is_replaced_by_the_next_and_without_any_the_numbers_stay(
    busy: SmallCluster,
) -> None:
    with replicas_of(busy, 2) as replicas, closing(Cluster(lambda: [each.url for each in replicas])) as source:

        async def steps(app: TopApp, pilot: Pilot[None]) -> None:
            replicas[0].kill()
            await shows(pilot, lambda: app.picture.sample.url == replicas[1].url, "the other one is asked")
            await shows(pilot, lambda: "2 alive, 0 lost" in screen_text(app), "it knows them too")
            assert "STALE" not in screen_text(app)
            replicas[1].kill()
            await shows(pilot, lambda: "STALE" in screen_text(app), "nobody answers")
            assert "2 alive, 0 lost" in screen_text(app)

        drive(TopApp(source, source.sample(), every_s=0.2), steps)


# The command itself, in a terminal of its own.


@pytest.fixture
def place() -> Iterator[Place]:
    with temporary_place() as made:
        yield made


class Terminal:
    """A command on a pseudo-terminal of 80 by 24, and all that it has written there."""

    def __init__(self, place: Place, *argv: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        env = {**place.env, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            place.argv(*argv), env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        self.written = b""

    def read(self) -> str:
        while select.select([self._ours], [], [], 0.02)[0]:
            self.written += os.read(self._ours, 1 << 16)
        return self.written.decode(errors="replace")

    def shows(self, text: str) -> bool:
        return text in self.read()

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def end(self) -> int:
        """Its exit code, which has to come in time; what it writes meanwhile is read."""
        until(lambda: self.read() is not None and self.process.poll() is not None, "it ends", deadline_s=END_S)
        return self.process.wait(END_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(END_S)
        os.close(self._ours)
        os.close(self.theirs)


@pytest.mark.parametrize(("ends_by", "code"), [(b"q", 0), (b"\x03", 130), (signal.SIGTERM, 0)])
def test_top_opens_on_a_terminal_and_gives_it_back(
    place: Place, lonely: str, ends_by: bytes | signal.Signals, code: int
) -> None:
    terminal = Terminal(place, "top", "--coordinator", lonely)
    try:
        until(lambda: terminal.shows("No worker has joined"), "the screen is drawn")
        if isinstance(ends_by, bytes):
            terminal.type(ends_by)
        else:
            terminal.process.send_signal(ends_by)
        assert terminal.end() == code, terminal.read()
        assert "Traceback" not in terminal.read()
        assert terminal.written.count(b"\x1b[?1049h") == terminal.written.count(b"\x1b[?1049l") == 1
        assert termios.tcgetattr(terminal.theirs) == terminal.before
    finally:
        terminal.close()


def test_no_colour_is_written_where_none_is_wanted(
    place: Place, lonely: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal(place, "top", "--coordinator", lonely)
    try:
        until(lambda: terminal.shows("No worker has joined"), "the screen is drawn")
        terminal.type(b"q")
        assert terminal.end() == 0
        coloured = re.findall(r"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7]|[34]8;[25])(?:;\d+)*m", terminal.read())
        assert coloured == []
    finally:
        terminal.close()


def test_top_says_what_is_wrong_before_a_screen_is_opened(place: Place, lonely: str) -> None:
    terminal = Terminal(place, "top", "--coordinator", "http://127.0.0.1:1")
    try:
        assert terminal.end() == 2
        said = " ".join(terminal.read().split())
        assert said.startswith("tiered: coordinator: nothing answers at http://127.0.0.1:1")
        assert "\x1b[?1049h" not in said
    finally:
        terminal.close()


def watching(place: Place, url: str, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        place.argv("stats", "--watch", "--every", "0.5", "--coordinator", url, *argv),
        env=place.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_watch_prints_one_json_object_a_line_until_ctrl_c(place: Place, lonely: str) -> None:
    process = watching(place, lonely, "--json")
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert lines[0]["last"] is None
    assert 0 <= lines[2]["last"]["seconds"] < 5
    assert lines[2]["stats"]["nodes"] == {"alive": 0, "known": 0}
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=END_S)
    assert (process.returncode, err) == (130, "")


def test_watch_ends_when_nobody_reads(place: Place, lonely: str) -> None:
    process = watching(place, lonely)
    assert process.stdout is not None
    assert process.stderr is not None
    assert "0 of 0 nodes alive" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(END_S) == 1
    assert process.stderr.read() == ""
    process.stderr.close()


def test_watch_redraws_in_place_on_a_terminal(place: Place, lonely: str) -> None:
    terminal = Terminal(place, "stats", "--watch", "--every", "0.5", "--coordinator", lonely)
    try:
        until(lambda: terminal.read().count("\x1b[H") >= 3, "it is drawn again")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        drawn = terminal.read().split("\x1b[H")[1:]
        assert all(each.count("\n") < 24 for each in drawn)
        assert "tenant" in drawn[0]
    finally:
        terminal.close()
