"""Error messages for functions with a literal number of rows that ``rows=`` does not declare."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence

from ...sharding import Placement, Shard, Unknown
from .library import Library


def explained(
    library: Library, variables: Sequence[Any], shards: Mapping[Any, Shard], placements: Sequence[Placement]
) -> List[Placement]:
    """Return the placements; explanations of unknown placements suggest ``rows=`` where it would help."""
    lost = list(dict.fromkeys(one.why for one in placements if isinstance(one, Unknown)))
    if not lost:
        return list(placements)
    with library.without_test_values():
        reasons = library.written_rows.reasons(variables, shards, lost)
    return [
        one._replace(why=reasons[one.why]) if isinstance(one, Unknown) and one.why in reasons else one
        for one in placements
    ]
