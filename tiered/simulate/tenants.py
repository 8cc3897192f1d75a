"""Who the tenants of a replay are and what each was promised: read from TOML or JSON, with a rule that names them.

::

    field = "model"              # this field of a request names its tenant; or, to deal its values to a few tenants:
    deal = 8                     # tenant-1 to tenant-8 ...
    by = "tool_tokens"           # ... get the values of this field
    rule = "most"                # the 7 values with most requests are one tenant each, tenant-8 is all others;
                                 # "hash", the default: each value by its own, the same on every machine
    seed = 0                     # another seed deals by "hash" anew

    [default]                    # of every tenant without a table of its own
    hot_reserved = "10%"         # of each worker's pool; or a number of blocks
    hot_limit = 4096

    [tenants.tenant-1]
    weight = 2.0
    over_quota = "refuse"
    sharing = "public"           # as in the cluster, private unless said: nobody else's blocks are read

It knows nothing of pools but their size.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tiered.errors import ConfigError
from tiered.simulate.trace import Request
from tiered.tenancy.policy import DEFAULT_TENANT, TenantPolicy, check_tenant_name
from tiered.types import TenantId

ONE_TENANT: Final = TenantId("all")
NAMELESS: Final = TenantId("none")
"""Of a request that lacks the field."""

DEALT_MAX: Final = 1_000
"""Tenants that a deal may make: each is one name in every row."""

Blocks = Annotated[int, Field(ge=0, le=1 << 32)] | Annotated[str, Field(pattern=r"^\d{1,3}(\.\d+)?%$")]


class Bounds(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    hot_reserved: Blocks = 0
    hot_limit: Blocks | None = None
    weight: float = Field(default=1.0, gt=0, le=1_000)
    over_quota: Literal["evict_own", "refuse"] = "evict_own"
    sharing: str = "private"

    def policy(self, tenant: TenantId, n_blocks: int) -> TenantPolicy:
        return TenantPolicy(
            tenant=tenant,
            hot_reserved_blocks=_of_pool(self.hot_reserved, n_blocks),
            hot_limit_blocks=None if self.hot_limit is None else _of_pool(self.hot_limit, n_blocks),
            weight=self.weight,
            over_quota=self.over_quota,
            sharing=self.sharing,
        )


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    field: str | None = None
    deal: int | None = Field(default=None, ge=1, le=DEALT_MAX)
    by: str | None = None
    rule: Literal["hash", "most"] = "hash"
    seed: int = 0
    default: Bounds = Bounds()
    tenants: dict[str, Bounds] = {}

    @model_validator(mode="after")
    def _check_one_rule(self) -> _File:
        if (self.field is None) == (self.deal is None):
            raise ValueError(
                "give field, which names a request's tenant, or deal and by, which deal a field's values"
            )
        if (self.deal is None) != (self.by is None):
            raise ValueError("deal and by go together: how many tenants, and which field's values they get")
        for name in self.tenants:
            check_tenant_name(name)
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Tenants:
    """``of`` names a request's tenant; the others say what each was promised and whose blocks it reads."""

    of: Callable[[Request], TenantId]
    bounds: Mapping[TenantId, Bounds] = field(default_factory=dict)
    """Of those with a table of their own, and under DEFAULT_TENANT of all others."""
    names: Sequence[TenantId] = ()
    """All that the trace has requests of, where there are bounds to check."""

    def policies(self, n_blocks: int) -> dict[TenantId, TenantPolicy]:
        """For a pool of ``n_blocks``; those of the trace that have no bounds of their own are promised the default's.

        Errors: ConfigError when more is promised than there is.
        """
        policies = {tenant: bounds.policy(tenant, n_blocks) for tenant, bounds in self._bounds_in(n_blocks)}
        default = policies.get(DEFAULT_TENANT)
        if default is not None:
            named = {name: default.model_copy(update={"tenant": name}) for name in self.names}
            policies = named | policies
        reserved = {name: policy.hot_reserved_blocks for name, policy in policies.items() if name != DEFAULT_TENANT}
        if sum(reserved.values()) > n_blocks:
            raise ConfigError(
                f"tenants: hot_reserved adds up to {sum(reserved.values()):,} blocks over {len(reserved)} tenants, "
                f"more than the {n_blocks:,} of a worker's pool; reserve less or give --hot-blocks more",
                field="hot_reserved",
            )
        return policies

    def label(self, tenant: TenantId) -> str:
        """Tenants of one label read each other's blocks."""
        bounds = self.bounds.get(tenant) or self.bounds.get(DEFAULT_TENANT)
        if bounds is None:
            return "public"
        return f"tenant:{tenant}" if bounds.sharing == "private" else bounds.sharing

    def _bounds_in(self, n_blocks: int) -> Iterable[tuple[TenantId, Bounds]]:
        for tenant, bounds in self.bounds.items():
            try:
                bounds.policy(tenant, n_blocks)
            except ValidationError as error:
                raise ConfigError(f"tenants: {tenant}: {_sentence(error)}", field=str(tenant)) from None
            yield tenant, bounds


ONE: Final = Tenants(of=lambda request: ONE_TENANT)
"""All requests are one tenant's."""


def by_field(name: str) -> Tenants:
    """Tenants without bounds of their own, so of equal weight, that read each other's blocks."""
    return Tenants(of=lambda request: _named(request, name))


def read_tenants(path: Path, requests: Iterable[Request]) -> Tenants:
    """The file's tenants, as it deals this trace's requests to them.

    Errors: ConfigError naming the file and the key.
    """
    file = _read(path)
    requests = list(requests)
    if file.field is not None:
        name = file.field
        _check_field(path, "field", name, requests)
        of: Callable[[Request], TenantId] = lambda request: _named(request, name)  # noqa: E731 - a deal is the other
    else:
        assert file.deal is not None  # _File checks that both are given
        assert file.by is not None
        _check_field(path, "by", file.by, requests)
        of = _dealt(requests, file.by, file.deal, rule=file.rule, seed=file.seed)
    bounds = {TenantId(name): bounds for name, bounds in file.tenants.items()}
    return Tenants(of, {DEFAULT_TENANT: file.default} | bounds, sorted({of(request) for request in requests}))


def _read(path: Path) -> _File:
    try:
        text = path.read_bytes()
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text.decode())
        return _File.model_validate(values)
    except OSError as error:
        raise ConfigError(f"--tenants: cannot read {path}: {error.strerror}", field="tenants") from None
    except ValidationError as error:
        raise ConfigError(f"--tenants: {path}: {_sentence(error)}", field="tenants") from None
    except ValueError as error:  # neither TOML nor JSON nor text
        raise ConfigError(
            f"--tenants: {path}: {error}; write TOML, or JSON in a .json file", field="tenants"
        ) from None


def _sentence(error: ValidationError) -> str:
    """The first complaint, with the key it is about."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("constrained", "function")))
    known = "" if first["type"] != "extra_forbidden" else " and is none of the keys that may stand there"
    words = "is unknown" + known if known else first["msg"].removeprefix("Value error, ")
    return f"{key}: {words}" if key else words


def _check_field(path: Path, key: str, name: str, requests: Sequence[Request]) -> None:
    if requests and not any(name in request.fields for request in requests):
        known = ", ".join(sorted(requests[0].fields))
        raise ConfigError(
            f"--tenants: {path}: {key}: no request of the trace has a field {name!r}; the first one has {known}",
            field=key,
        )


def _named(request: Request, name: str) -> TenantId:
    value = request.fields.get(name)
    return NAMELESS if value is None else TenantId(str(value))


def _dealt(
    requests: Sequence[Request], by: str, n_tenants: int, *, rule: Literal["hash", "most"], seed: int
) -> Callable[[Request], TenantId]:
    values = Counter(_named(request, by) for request in requests)
    if rule == "most":
        ranked = sorted(values, key=lambda value: (-values[value], value))
        dealt = {value: min(rank, n_tenants - 1) for rank, value in enumerate(ranked)}
    else:
        dealt = {value: _hashed(f"{seed}:{value}", n_tenants) for value in values}
    names = {value: TenantId(f"tenant-{index + 1}") for value, index in dealt.items()}
    return lambda request: names[_named(request, by)]


def _hashed(text: str, n_tenants: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % n_tenants


def _of_pool(bound: int | str, n_blocks: int) -> int:
    return bound if isinstance(bound, int) else int(float(bound.removesuffix("%")) / 100 * n_blocks)
