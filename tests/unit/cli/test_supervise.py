"""Which service is started again, and when: no process and no clock needed."""

from __future__ import annotations

from itertools import pairwise

from tiered.cli.supervise import CALM_S, Supervisor


class FakeService:
    def __init__(self, name: str = "worker-1") -> None:
        self.name = name
        self.alive = True
        self.ready = True
        self.ending = ""
        self.spawned_at: list[float] = []
        self.refuses = False
        self.now = 0.0

    def die(self, ending: str) -> None:
        self.alive, self.ready, self.ending = False, False, ending

    def spawn(self) -> None:
        self.spawned_at.append(self.now)
        if self.refuses:
            raise OSError("no memory")
        self.alive = True


class World:
    """One service under a supervisor, looked at ten times a second."""

    def __init__(self) -> None:
        self.service = FakeService()
        self.said: list[str] = []
        self.ticks = 0
        self.supervisor = Supervisor([self.service], say=self.said.append, now=0.0)

    def run(self, seconds: float, *, die_at_once: bool = False) -> None:
        for _ in range(round(seconds * 10)):
            self.ticks += 1
            self.service.now = self.ticks / 10
            self.supervisor.look(self.service.now)
            if die_at_once and self.service.alive:
                self.service.die("exit code 1")


def test_a_living_service_is_left_alone() -> None:
    world = World()
    world.run(60)
    assert world.service.spawned_at == []
    assert world.said == []


def test_a_death_is_said_once_with_its_cause_and_answered_after_half_a_second() -> None:
    world = World()
    world.service.die("killed by SIGKILL")
    world.run(5)
    assert world.said == ["worker-1 died (killed by SIGKILL); starting it again in 0.5 s"]
    assert world.service.spawned_at == [0.6]


def test_a_return_is_said_when_the_service_is_ready_again() -> None:
    world = World()
    world.service.die("exit code 1")
    world.run(2)
    world.service.ready = True
    world.run(2)
    assert world.said[1:] == ["worker-1 is back"]


def test_the_delay_doubles_up_to_ten_seconds() -> None:
    world = World()
    world.service.die("exit code 1")
    world.run(60, die_at_once=True)
    times = world.service.spawned_at
    gaps = [round(after - before) for before, after in pairwise(times)]
    assert gaps[:3] == [1, 2, 4]
    assert max(gaps) == 10


def test_a_service_that_lived_long_starts_again_with_the_first_delay() -> None:
    world = World()
    world.service.die("exit code 1")
    world.run(1)
    world.run(CALM_S)
    world.service.die("exit code 1")
    world.run(0.1)
    assert world.said[-1].endswith("in 0.5 s")


def test_a_start_that_fails_is_tried_again() -> None:
    world = World()
    world.service.refuses = True
    world.service.die("exit code 1")
    world.run(1)
    assert world.said[-1] == "worker-1 died (could not be started: no memory); starting it again in 1 s"
    world.service.refuses = False
    world.run(2)
    assert world.service.alive
