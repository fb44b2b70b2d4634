"""Hot slots: those with more work than an instance's even share, which no dealing out of slots can level.

Where state is merged anyway, the rows of such a slot, also if they are all of one key, are spread over all instances, and its owner merges
their partials when a window closes. Flink and Kafka Streams would need the query rewritten for that (a salted key and a second aggregate).
"""

from __future__ import annotations

import numpy as np

from headrace.state.routing import Routing, Weights

HOT_SHARE = 1.0
"""A slot is hot when it has more than this share of what each instance ought to have."""


def levelled(before: Routing, instances: int, work: Weights | None, spreads: bool) -> Routing:
    """For so many instances, the work even among them; hot slots are spread, if they may be.

    >>> work = np.ones(4096)
    >>> work[77] = 9000.0
    >>> after = levelled(Routing.even(2), 4, work, spreads=True)
    >>> after.spread, max(after.loads(np.where(work > 1, 0, work)))
    (((77, 78),), 1024.0)
    >>> levelled(after, 4, np.ones(4096), spreads=True).spread
    ()
    """
    if work is None or not spreads:
        return before.rescaled(instances, work)
    hot = (work > HOT_SHARE * work.sum() / instances) & (instances > 1)
    after = before.rescaled(instances, np.where(hot, 0.0, work))
    return after.spreading(int(slot) for slot in np.flatnonzero(hot))
