"""``tiered demo``: the main job, on a real model and real conversations, checked by itself."""

from tiered.cli.demo.command import demo_command

__all__ = ["demo_command"]
