"""What the routes share: the parts of one server, and whether it takes requests now."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from tiered.serving.callers import Callers
from tiered.serving.engine import CacheState, Engine, Model
from tiered.serving.errors import ApiError, loading, stopping
from tiered.serving.metrics import Metrics
from tiered.serving.settings import Settings

_NO_CACHE: Final = CacheState("none", attached=False)


@dataclass(slots=True)
class Serving:
    """What the routes need. is_stopping: nothing new is taken on."""

    settings: Settings
    name: str
    engine: Engine
    callers: Callers
    metrics: Metrics
    is_stopping: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    tokenizing: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize")
    )

    def model(self) -> Model:
        """Errors: ApiError 503 when there is none to ask, yet or any more."""
        if self.is_stopping:
            raise stopping()
        if self.engine.model is None:
            raise loading()
        return self.engine.model

    @property
    def cache(self) -> CacheState:
        return _NO_CACHE if self.engine.model is None else self.engine.model.cache()

    @property
    def ready(self) -> bool:
        return self.engine.model is not None and self.engine.alive and not self.is_stopping

    def require_name(self, name: str) -> None:
        """Errors: ApiError 404 for a model that is not the one served."""
        if name != self.name:
            raise ApiError(
                404,
                f"model: there is no {name[:100]!r} here, only {self.name!r}",
                param="model",
                code="model_not_found",
            )
