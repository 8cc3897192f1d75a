"""What the cluster says of itself at one moment, from whichever of its coordinators answers.

Owns whom to ask next when one does not answer. It adds nothing up and draws nothing; it blocks, and every call has a
deadline.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlencode

from tiered.cli.access import token, trust
from tiered.cli.api import CoordinatorClient, NotFound, find_coordinator
from tiered.cli.bodies import Alert, Node, Stats, Tenant, UsageRow
from tiered.cli.cluster_file import read_cluster_file
from tiered.cli.explained import Event, Evictions
from tiered.cli.top.words import brief
from tiered.errors import ConfigError

TIMEOUT_S: Final = 3.0
"""Of one call: with a replica to turn to, less patience than other commands have."""

EVENTS_MAX: Final = 50

REDIS: Final = "redis"

TOO_OLD: Final = "alerts need a newer coordinator than this one"


@dataclass(frozen=True, slots=True)
class Sample:
    """at: when the coordinator had read these numbers, by this process's monotonic clock. alerts: the gravest first;
    alerts_failure: why they are not known, empty where they are."""

    url: str
    at: float
    stats: Stats
    tenants: Sequence[Tenant]
    nodes: Sequence[Node]
    alerts: Sequence[Alert] = ()
    alerts_failure: str = ""

    @property
    def asked_at(self) -> float:
        return self.at + self.stats.age_s


@dataclass(frozen=True, slots=True)
class Subject:
    """What somebody has opened: a tenant or a node."""

    kind: type[Tenant] | type[Node]
    name: str


@dataclass(frozen=True, slots=True)
class Detail:
    """Of one subject: where its bytes are and what happened to it of late, newest first. silent: who gave no answer,
    and why there is less than there could be."""

    subject: Subject
    usage: Sequence[UsageRow]
    events: Sequence[Event]
    silent: Sequence[str]


class Source(Protocol):
    """Errors of both: ConfigError, one sentence."""

    def sample(self) -> Sample: ...

    def detail(self, subject: Subject) -> Detail: ...


class Cluster:
    """Asks one coordinator until it does not answer, then the next. One caller at a time.

    urls: all that are known by now, the preferred first; looked up anew at each failure, since a cluster that was
    started again has other addresses.
    """

    def __init__(
        self,
        urls: Callable[[], Sequence[str]],
        *,
        token: str = "",
        verify: ssl.SSLContext | bool = True,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls = urls
        self._token, self._verify, self._timeout_s = token, verify, timeout_s
        self._clock = clock
        self._client: CoordinatorClient | None = None
        self._answered: str | None = None

    def sample(self) -> Sample:
        """Errors: ConfigError with what the first of those asked said, once none has answered."""
        return self._first_answer(whole=True)

    def totals(self) -> Sample:
        """As sample, with the sums alone: no tenants, no nodes, no alerts."""
        return self._first_answer(whole=False)

    def detail(self, subject: Subject) -> Detail:
        """From the coordinator that answered last."""
        client = self._client
        if client is None:
            raise ConfigError("coordinator: none answers by now", field="coordinator")
        if subject.kind is Tenant:
            usage, query = client.usage(tenant=subject.name), {"tenant": subject.name}
        else:
            usage, query = client.usage(node=subject.name), {"node": subject.name}
        try:
            found = client.evictions(urlencode({**query, "limit": EVENTS_MAX}))
        except ConfigError as error:  # a node that has died tells nothing any more; its usage is known all the same
            return Detail(subject, usage, (), (f"not known: {brief(str(error)).removeprefix('node: ')}",))
        return Detail(subject, usage, found.events, _silent(found))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _first_answer(self, *, whole: bool) -> Sample:
        asked: list[str] = []
        first: ConfigError | None = None
        while True:
            client = self._client or self._next(asked)
            if client is None:
                assert first is not None
                raise first
            self._client = client
            asked.append(client.url)
            try:
                sample = self._ask(client, whole=whole)
            except ConfigError as error:
                first = first or error
                self._client = None
                client.close()
            else:
                self._answered = client.url
                return sample

    def _next(self, asked: Sequence[str]) -> CoordinatorClient | None:
        """The first that was not asked in this round: the one that answered last, then those known by now."""
        known = [url.rstrip("/") for url in self._urls()]
        left = [url for url in ([] if self._answered is None else [self._answered]) + known if url not in asked]
        if not left:
            return None
        return CoordinatorClient(left[0], token=self._token, verify=self._verify, timeout_s=self._timeout_s)

    def _ask(self, client: CoordinatorClient, *, whole: bool) -> Sample:
        stats = client.stats()
        at = self._clock() - stats.age_s
        if not whole:
            return Sample(url=client.url, at=at, stats=stats, tenants=(), nodes=())
        tenants, nodes = client.tenants(), client.nodes()
        alerts, failure = _alerts(client)
        return Sample(client.url, at, stats, tenants, nodes, alerts=alerts, alerts_failure=failure)


def cluster_of(option: str | None) -> Cluster:
    """What the flags, the environment or this machine's cluster file name. Errors: ConfigError of the flags."""
    find_coordinator(option)  # an address that is none is said at once
    return Cluster(lambda: known_coordinators(option), token=token(), verify=trust())


def known_coordinators(option: str | None) -> list[str]:
    """The one that was named, then its replicas, as far as this machine's cluster file knows them."""
    first = find_coordinator(option)
    state = read_cluster_file()
    replicas = [] if state is None else state.coordinators
    return [first, *(url for url in replicas if url != first)] if first in replicas else [first]


def _alerts(client: CoordinatorClient) -> tuple[Sequence[Alert], str]:
    """And why there are none to be had; the numbers are worth showing all the same."""
    try:
        return client.alerts(), ""
    except NotFound:
        return (), TOO_OLD
    except ConfigError as error:
        return (), brief(str(error))


def _silent(found: Evictions) -> list[str]:
    return [f"no answer from {each.who}: {each.reason}" for each in found.silent]
