"""The report of a profile, for people."""

from __future__ import annotations

import json
from typing import Any, Dict


class Report:
    """Where the time of a session went."""

    def __init__(self, profile: Dict[str, Any]) -> None:
        self.profile = profile

    def files(self) -> Dict[str, str]:
        """Return the files of a profile's folder that are made of it, by name."""
        return {"profile.json": json.dumps(self.profile, indent=1)}
