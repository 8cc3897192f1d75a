"""Which settings of the services the chart leaves to its users, as values.schema.json lists them."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from coordinator.settings import Settings as CoordinatorSettings
from tiered.config import ByteSize
from worker.settings import Settings as WorkerSettings

_SHARED: Final = {"redis.url", "redis.password", "redis.namespace", "redis.partitions", "cluster.secret"}
MADE_BY_THE_CHART: Final = {
    WorkerSettings: _SHARED
    | {"node", "cluster.accepted_secret", "cluster.drain_on_stop_s", "pool.bytes", "pool.device"}
    | {"journal.path", "journal.keep_on_stop"},
    CoordinatorSettings: _SHARED | {"http"},
}
_PLAIN: Final[dict[object, str]] = {bool: "boolean", int: "integer", float: "number"}


def settings_schema(model: type[BaseModel]) -> dict[str, Any]:
    """JSON schema of {group: {field: value}}. Bounds are the service's business, which names them at its start."""
    made = MADE_BY_THE_CHART[model]  # type: ignore[index]
    groups = {}
    for group, about in model.model_fields.items():
        fields = about.annotation
        if group in made or not (isinstance(fields, type) and issubclass(fields, BaseModel)):
            continue
        own = {name: _type(field) for name, field in fields.model_fields.items() if f"{group}.{name}" not in made}
        groups[group] = _object(own)
    return _object(groups)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _type(field: FieldInfo) -> dict[str, Any]:
    if any(part in field.metadata for part in get_args(ByteSize)[1:] if not isinstance(part, FieldInfo)):
        return {"type": ["integer", "string"]}
    annotation = _bare(field.annotation)
    if get_origin(annotation) is Literal:
        return {"enum": list(get_args(annotation))}
    return {"type": _PLAIN.get(annotation, "string")}


def _bare(annotation: Any) -> Any:
    """Without bounds, and without the None that says "not given"."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _bare(next(part for part in get_args(annotation) if part is not NoneType))
    return annotation
