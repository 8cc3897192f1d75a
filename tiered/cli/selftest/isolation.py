"""Two tenants, one of which owns blocks: what does each find of them, on every path there is?

Owns the order of the paths and what counts as proof. It attaches to workers as engines do, under a model of its own,
so that nothing of anybody else is touched; its tenants and their blocks are gone at the end. What it looks up is in
nobody's token counts.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from tiered.cli.api import CoordinatorClient
from tiered.cli.bodies import Node
from tiered.cli.cluster_file import read_cluster_file
from tiered.client.port import Match, Saved
from tiered.client.remote import RemoteClient
from tiered.errors import ConfigError
from tiered.hashing.chain import chain_hashes
from tiered.hashing.scope import ModelScope, decode_scope, scope_id, tenant_label
from tiered.pool.pool import BlockPool
from tiered.types import BlockHash, BlockId, Source, TenantId

N_BLOCKS: Final = 4
OWNER: Final = TenantId("selftest-owner")
STRANGER: Final = TenantId("selftest-other")
"""The same each time: a worker remembers tenants for as long as it runs."""

COMPUTED: Final = "computing so few tokens is quicker here"
WAIT_S: Final = 10.0
RESTART_S: Final = 60.0
_POLL_S: Final = 0.05


class Finding(msgspec.Struct, frozen=True):
    """One path. owner and stranger: what either found there; tried is False where this cluster has no such path."""

    path: str
    owner: str
    stranger: str
    tried: bool
    ok: bool

    @property
    def verdict(self) -> str:
        if not self.tried:
            return "not tried"
        return "isolated" if self.ok else "NOT PROVEN"


def prove_isolation(client: CoordinatorClient, *, restart: bool) -> list[Finding]:
    """Every path in turn. Errors: ConfigError when the cluster cannot be looked at so, such as without an engine."""
    nodes = _usable(client)
    with ExitStack() as stack:
        trial = stack.enter_context(_tenants(client))
        for node in nodes[:2]:
            trial.attach(stack, node)
        findings = [_same_worker(trial), _redis(trial), _peer(trial)]
        trial.save(trial.engines[0], trial.next_prompt())
        findings.append(_api(trial))
        if restart:
            findings.append(_after_restart(trial, stack))
        return findings


@dataclass(slots=True)
class _Trial:
    """Two tenants, and an engine of ours on one or two workers. number: of the prompt made last."""

    client: CoordinatorClient
    mark: str
    number: int = 0
    nodes: list[Node] = field(default_factory=list)
    engines: list[RemoteClient] = field(default_factory=list)

    def attach(self, stack: ExitStack, node: Node) -> RemoteClient:
        layout = decode_scope(node.scopes[0]).layout
        scope = ModelScope(model=f"tiered-selftest-{self.mark}", weights_version="1", layout=layout)
        engine = RemoteClient.attach(node.socket_path, scope, engine="selftest")
        stack.callback(engine.close)
        self.nodes.append(node)
        self.engines.append(engine)
        return engine

    def next_prompt(self) -> int:
        self.number += 1
        return self.number

    def prompt(self, number: int) -> list[int]:
        """Tokens of N_BLOCKS full blocks; every number has its own."""
        n_tokens = N_BLOCKS * self.engines[0].layout.block_tokens
        return [number * 1_000_000 + i for i in range(n_tokens)]

    def hashes(self, number: int) -> list[BlockHash]:
        """As the owner's blocks are called."""
        scope = self.engines[0].scope
        root = scope_id(scope, label=tenant_label(OWNER))
        return chain_hashes(root, self.prompt(number), block_tokens=scope.layout.block_tokens)

    def question(self, tenant: TenantId, number: int) -> dict[str, object]:
        return {"tenant": tenant, "tokens": self.prompt(number), "model": self.engines[0].scope.model}

    def save(self, engine: RemoteClient, number: int) -> None:
        """As the owner. Errors: ConfigError when it is not stored whole.

        A fetch that nobody waits for any longer may hold the owner's room for a moment, so it is tried again.
        """

        def fill(pool: BlockPool, block_ids: Sequence[BlockId], first_index: int) -> None:
            for offset, block_id in enumerate(block_ids):
                with pool.write(block_id) as place:
                    place[:] = bytes([number % 256, first_index + offset]) * (len(place) // 2) + b"\0" * (
                        len(place) % 2
                    )

        saved = Saved()

        def is_stored() -> bool:
            nonlocal saved
            saved = engine.save(self.prompt(number), tenant=OWNER, fill=fill, wait_s=WAIT_S)
            return saved.first_index + saved.n_stored >= N_BLOCKS

        if not _until(is_stored):
            raise ConfigError(
                f"selftest: {engine.node or 'the worker'} does not store the blocks of the test ({saved.answer}); "
                "give the pool some room",
                field="selftest",
            )

    def promised(self, engine: RemoteClient, tenant: TenantId, number: int) -> Counter[Source]:
        """What a match says there is, and where; nothing is moved."""
        match = self._match(engine, tenant, number)
        engine.release(match, used_tokens=0)
        found = {Source.HOT: len(match.block_ids), Source.PEER: match.n_peer, Source.REDIS: match.n_redis}
        return Counter({source: n for source, n in found.items() if n})

    def taken(self, engine: RemoteClient, tenant: TenantId, number: int) -> Counter[Source]:
        """What can really be read, and where it came from."""
        match = self._match(engine, tenant, number)
        loaded = engine.load(match, deadline_s=WAIT_S)
        engine.release(match, used_tokens=0)
        return Counter(loaded.sources)

    def _match(self, engine: RemoteClient, tenant: TenantId, number: int) -> Match:
        return engine.match_chain(engine.chain(self.prompt(number), tenant=tenant), is_counted=False)

    def seen_by_stranger(self, engine: RemoteClient, number: int) -> Counter[Source]:
        return self.promised(engine, STRANGER, number) + self.taken(engine, STRANGER, number)

    def compare(self, path: str, source: Source, engine: RemoteClient, place: Callable[[], int]) -> Finding:
        """place: stores a prompt of the owner's where the path leads to, and returns its number.

        The stranger first: what the owner takes is hot afterwards. A fetch may lawfully bring less than all, since a
        load is given up when it is slower than computing so few tokens; then another prompt is tried.
        """
        ends_at = time.monotonic() + WAIT_S
        while True:
            number = place()
            stranger = self.seen_by_stranger(engine, number)
            owner = self.taken(engine, OWNER, number)
            is_proven = owner[source] == N_BLOCKS
            if stranger or is_proven or time.monotonic() >= ends_at:
                return Finding(path, _said(owner), _said(stranger), tried=True, ok=is_proven and not stranger)
            time.sleep(_POLL_S)


def _same_worker(trial: _Trial) -> Finding:
    engine = trial.engines[0]

    def place() -> int:
        trial.save(engine, trial.next_prompt())
        return trial.number

    return trial.compare(f"the same worker ({trial.nodes[0].node})", Source.HOT, engine, place)


def _redis(trial: _Trial) -> Finding:
    """One prompt of the owner's takes the place of the one before, which is evicted, and so goes to Redis."""
    engine = trial.engines[0]

    def place() -> int:
        number = trial.next_prompt()
        trial.save(engine, number)
        trial.save(engine, trial.next_prompt())
        if not _until(lambda: trial.promised(engine, OWNER, number)[Source.REDIS] == N_BLOCKS):
            in_redis = _in_redis(trial.client, trial.question(OWNER, number))
            raise _NoSuchPathError(COMPUTED if in_redis == N_BLOCKS else "this cluster puts no evicted blocks there")
        return number

    return _where_there_is(trial, "Redis", Source.REDIS, engine, place)


def _peer(trial: _Trial) -> Finding:
    """What is hot on the first worker, asked of the second."""
    if len(trial.engines) < 2:
        return Finding("a peer", "only one worker with an engine is on this machine", "-", tried=False, ok=True)
    first, second = trial.engines

    def place() -> int:
        number = trial.next_prompt()
        trial.save(first, number)
        is_promised = _until(lambda: trial.promised(second, OWNER, number)[Source.PEER] == N_BLOCKS)
        if not is_promised and _covered(trial.client, trial.question(OWNER, number)) == N_BLOCKS:
            raise _NoSuchPathError(COMPUTED)
        return number

    path = f"a peer ({trial.nodes[0].node} to {trial.nodes[1].node})"
    return _where_there_is(trial, path, Source.PEER, second, place)


class _NoSuchPathError(Exception):
    """Blocks do not take this path in this cluster, and why."""


def _where_there_is(
    trial: _Trial, path: str, source: Source, engine: RemoteClient, place: Callable[[], int]
) -> Finding:
    try:
        return trial.compare(path, source, engine, place)
    except _NoSuchPathError as error:
        return Finding(path, str(error), "-", tried=False, ok=True)


def _api(trial: _Trial) -> Finding:
    """The prompt made last, asked for at the coordinator under each tenant's own token."""
    tokens = [
        trial.client.create_token(tenant, label="selftest", expires_s=600).token for tenant in (OWNER, STRANGER)
    ]
    of_owner, of_stranger = trial.question(OWNER, trial.number), trial.question(STRANGER, trial.number)
    with trial.client.with_token(tokens[0]) as owner, trial.client.with_token(tokens[1]) as stranger:
        _until(lambda: _covered(owner, of_owner) == N_BLOCKS)
        n_seen = _covered(owner, of_owner)
        names = [{tenant.policy.tenant for tenant in caller.tenants()} for caller in (owner, stranger)]
        by_hash = {"tenant": STRANGER, "hashes": [block_hash.hex() for block_hash in trial.hashes(trial.number)]}
        ways = {
            "its name": OWNER in names[1],
            "its prompt": bool(_covered(stranger, of_stranger)),
            "its prompt under its name": bool(_covered(stranger, of_owner)),
            "its hashes": bool(_covered(stranger, by_hash)),
        }
    leaks = [way for way, leaked in ways.items() if leaked]
    ok = not leaks and n_seen == N_BLOCKS and names[0] == {OWNER}
    return Finding("the API", f"{n_seen} blocks", ", ".join(leaks) or "nothing", tried=True, ok=ok)


def _covered(client: CoordinatorClient, question: Mapping[str, object]) -> int:
    """How many blocks of a prompt this caller is told of; none where it is refused."""
    try:
        return sum(scope.covered_blocks for scope in client.prefixes(question).scopes)
    except ConfigError:
        return 0


def _in_redis(client: CoordinatorClient, question: Mapping[str, object]) -> int:
    return sum(scope.tiers.redis for scope in client.prefixes(question).scopes)


def _after_restart(trial: _Trial, stack: ExitStack) -> Finding:
    """The first worker is killed; its next life, peers and Redis have what they have of the prompt made last."""
    node = trial.nodes[0]
    path = f"after a restart of {node.node}"
    if read_cluster_file() is None or node.pid <= 0 or not Path(f"/proc/{node.pid}").exists():
        return Finding(path, "no cluster of `tiered up` runs here", "-", tried=False, ok=True)
    if len(trial.engines) > 1:
        _until(lambda: trial.taken(trial.engines[1], OWNER, trial.number).total() == N_BLOCKS)
    os.kill(node.pid, signal.SIGKILL)

    def is_back() -> bool:
        lives = [other for other in trial.client.nodes() if other.node == node.node]
        return any(life.alive and life.epoch > node.epoch for life in lives)

    if not _until(is_back, within_s=RESTART_S):
        return Finding(path, f"{node.node} did not come back", "-", tried=True, ok=False)
    engine = trial.attach(stack, node)
    stranger = trial.seen_by_stranger(engine, trial.number)
    _until(lambda: trial.taken(engine, OWNER, trial.number).total() == N_BLOCKS)
    owner = trial.taken(engine, OWNER, trial.number)
    stranger += trial.seen_by_stranger(engine, trial.number)
    return Finding(path, _said(owner), _said(stranger), tried=True, ok=not stranger and owner.total() == N_BLOCKS)


@contextmanager
def _tenants(client: CoordinatorClient) -> Iterator[_Trial]:
    """Two private tenants, the first with room for one prompt on each node; with their blocks they are gone again."""
    with ExitStack() as stack:
        for name in (OWNER, STRANGER):
            if any(tenant.named and tenant.policy.tenant == name for tenant in client.tenants()):
                raise ConfigError(
                    f"selftest: tenant {name!r} is there already: another self-test runs, or one was killed; if none "
                    f"runs, `tiered tenants delete {name}`",
                    field="selftest",
                )
            client.create_tenant(name, {"sharing": "private", "hot_limit_blocks": N_BLOCKS, "redis_codec": "none"})
            stack.callback(client.delete_tenant, name)
            stack.callback(client.clear, {"tenant": name})
        time.sleep(1.0)  # a worker has a change of policies within half a second, and nothing shows when
        yield _Trial(client, mark=secrets.token_hex(4))


def _usable(client: CoordinatorClient) -> list[Node]:
    """Workers on this machine to which an engine is attached: it says the layout that blocks have there."""
    alive = [node for node in client.nodes() if node.alive]
    near = [node for node in alive if Path(node.socket_path).is_socket()]
    if not near:
        raise ConfigError(
            "selftest: no worker of this cluster is on this machine; run it beside one, as the user whose engines "
            "attach to it",
            field="selftest",
        )
    usable = [node for node in near if node.scopes]
    if not usable:
        raise ConfigError(
            f"selftest: no engine is attached to {', '.join(node.node for node in near)}, so the layout of blocks is "
            "not known there; attach one, such as with `tiered demo`",
            field="selftest",
        )
    return usable


def _until(condition: Callable[[], bool], *, within_s: float = WAIT_S) -> bool:
    ends_at = time.monotonic() + within_s
    while not condition():
        if time.monotonic() >= ends_at:
            return False
        time.sleep(_POLL_S)
    return True


def _said(found: Counter[Source]) -> str:
    return ", ".join(f"{n} blocks {source.value}" for source, n in sorted(found.items())) or "nothing"
