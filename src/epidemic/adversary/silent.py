"""Silence: malicious nodes send nothing."""

from __future__ import annotations

from epidemic.adversary.base import Adversary, Scene


class Silent(Adversary, frozen=True, tag="silent"):
    """Nothing. Receivers have fewer models, as if messages were lost."""

    def message(self, scene: Scene) -> None:
        """Return nothing, so that no message is sent."""
        return
