"""What an adapter is: its name, its very weights and how they are scaled, so that a name that is used again never
finds the old KV."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tiered.connectors.weights import folder_digest

REMEMBERED_MAX: Final = 1_024

_SCALING: Final = "adapter_config.json"
"""Says by how much its weights count, and by what rule."""


class Adapters:
    """Reads each adapter once, when it is first asked for, as the engine does; again when told to load it again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, str], str] = {}

    def identity_of(self, adapter: Any) -> str:
        """adapter: vLLM's LoRARequest. ValueError for one whose weights are not in a local folder."""
        key = (adapter.lora_name, adapter.lora_int_id, adapter.lora_path)
        if adapter.load_inplace:
            self._known.pop(key, None)
        known = self._known.get(key)
        if known is None:
            known = f"{adapter.lora_name}@{self._digest(adapter)}"
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[key] = known
        return known

    def _digest(self, adapter: Any) -> str:
        folder = Path(adapter.lora_path)
        try:
            if not folder.is_dir():
                raise ValueError(f"{adapter.lora_path} is no local folder")
            return folder_digest(folder, beside=(_SCALING,))
        except (OSError, ValueError) as error:  # OSError: a file system that is away, which is_dir does not hide
            raise ValueError(f"adapter {adapter.lora_name!r}: {error}") from None
