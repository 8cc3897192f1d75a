"""Who asks and for what: a request's tenant, and what distinguishes its tokens from equal ones.

The tenant comes from the request's ``kv_transfer_params``, which whoever runs the engine's front end controls, or
from a map of cache salts; never from the prompt. A request that cannot be told apart from others is not cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tiered.client.hints import hints_of
from tiered.connectors.vllm.adapters import Adapters
from tiered.hashing.chain import Extras, MultimodalItem
from tiered.log import get_logger
from tiered.tenancy.policy import check_tenant_name
from tiered.types import NO_HINTS, Hints, TenantId

TENANT_PARAM: Final = "tenant"

_log = get_logger("tiered.connectors.vllm")


class EngineRequest(Protocol):
    """What is read of a vLLM request. The token ids grow as it answers; the numbers change under the scheduler."""

    request_id: str
    all_token_ids: Sequence[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    num_in_flight_tokens: int
    cache_salt: str | None
    session_id: str | None
    kv_transfer_params: dict[str, Any] | None
    lora_request: Any
    mm_features: Sequence[Any]
    prompt_token_ids: Sequence[int] | None
    prompt_embeds: Any
    skip_reading_prefix_cache: bool
    resumable: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """may_load: False for a request that is to be computed, such as one that wants its prompt's log-probabilities."""

    tenant: TenantId
    extras: Extras | None
    may_load: bool = True
    hints: Hints = NO_HINTS


def tenant_named(params: Mapping[str, Any] | None) -> TenantId | None:
    """By a request's ``kv_transfer_params``; None where they name none. ValueError for a name that none may have."""
    named = (params or {}).get(TENANT_PARAM)
    if named is None:
        return None
    if not isinstance(named, str):
        raise ValueError(f"kv_transfer_params.{TENANT_PARAM}: a {type(named).__name__} is no string")
    return TenantId(check_tenant_name(named))


class Asking:
    """Reads requests; warns once of each kind of trouble, since all requests may have it."""

    def __init__(self, *, default_tenant: TenantId, salt_tenants: Mapping[str, TenantId], adapters: Adapters) -> None:
        self._default_tenant = default_tenant
        self._salt_tenants = salt_tenants
        self._adapters = adapters
        self._warned: set[str] = set()

    def ask_of(self, request: EngineRequest) -> Ask | None:
        """None for a request that is to be served without the cache."""
        if request.prompt_token_ids is None or request.prompt_embeds is not None:
            return None
        if request.resumable:  # its later input, with images of its own perhaps, is told to nobody
            return None
        try:
            tenant = self._tenant_of(request)
            extras = self._extras_of(request)
            hints = self._hints_of(request)
        except ValueError as error:  # a tenant nobody may be called, an adapter that cannot be read
            self._warn(str(error))
            return None
        except Exception as error:  # read from outside, in the loop that all requests wait for: this one goes without
            self._warn(f"{type(error).__name__} in what is read of a request", exc_info=True)
            return None
        return Ask(tenant, extras, may_load=not request.skip_reading_prefix_cache, hints=hints)

    def _tenant_of(self, request: EngineRequest) -> TenantId:
        named = tenant_named(request.kv_transfer_params)
        if named is not None:
            return named
        if request.cache_salt is not None and request.cache_salt in self._salt_tenants:
            return self._salt_tenants[request.cache_salt]
        return self._default_tenant

    def _extras_of(self, request: EngineRequest) -> Extras | None:
        adapter = self._adapters.identity_of(request.lora_request) if request.lora_request is not None else ""
        items = tuple(
            MultimodalItem(
                content_hash=feature.identifier.encode(),
                offset=feature.mm_position.offset,
                length=feature.mm_position.length,
            )
            for feature in request.mm_features
        )
        salt = request.cache_salt or ""
        return Extras(adapter=adapter, salt=salt, items=items) if adapter or salt or items else None

    def _hints_of(self, request: EngineRequest) -> Hints:
        """What cannot be a hint is none: it changes nobody's answer."""
        given = dict(request.kv_transfer_params or {})
        if given.get("session") is None:
            given["session"] = request.session_id
        try:
            return hints_of(given)
        except ValueError as error:
            self._warn(str(error), what="request served without its hints")
            return NO_HINTS

    def _warn(self, problem: str, *, what: str = "request served without the cache", exc_info: bool = False) -> None:
        if len(self._warned) < 100 and problem not in self._warned:  # bounded: tenants' names come from outside
            self._warned.add(problem)
            _log.warning(what, reason=problem, exc_info=exc_info)
