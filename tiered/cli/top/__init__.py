"""``tiered top``: the cluster in a terminal, live.

``sample`` asks, ``flow`` counts, ``columns``, ``overview`` and ``details`` word it; what needs a person's eye the
coordinator judges. Only ``app``, ``screens`` and ``table`` know that there is a screen, and import Textual, which no
other command should wait for.
"""

from tiered.cli.top.command import top_command

__all__ = ["top_command"]
