"""How long engines waited for what they asked; written on the loop, by whoever serves them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiered.metrics.timing import Timing


@dataclass(slots=True)
class EngineTimings:
    """match and load: from the request to its answer. save: from a request for slots to the commit of what the engine
    filled, room that had to be made and the engine's copying included."""

    match: Timing = field(default_factory=Timing)
    load: Timing = field(default_factory=Timing)
    save: Timing = field(default_factory=Timing)

    def copy(self) -> EngineTimings:
        return EngineTimings(self.match.copy(), self.load.copy(), self.save.copy())
