"""What a change of the routing would do, without doing it: for the monitor's dry runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace.errors import QueryError
from headrace.ids import SLOTS, InstanceId, OperatorId
from headrace.runtime.elastic import INSTANCES_MAX, LiveRouting, slot_ranges
from headrace.state.routing import Routing

Change = Callable[[OperatorId, Routing], Routing]


def preview(live: LiveRouting, request: Mapping[str, Any]) -> dict[str, Any]:
    """By operator: instances and their shares of the recent work, before and after the change that ``request`` would make."""
    names = live.named("preview", request.get("operator"))
    change = _change(live, request)
    return {name: _told(live, name, live.routing[name], change(name, live.routing[name])) for name in names}


def _change(live: LiveRouting, request: Mapping[str, Any]) -> Change:
    match request:
        case {"do": "rescale", "instances": int() as instances} if 1 <= instances <= INSTANCES_MAX:
            return lambda name, before: live.levelled_routing(name, before, instances)
        case {"do": "rebalance"}:
            return lambda name, before: live.levelled_routing(name, before, before.instances)
        case {"do": "move", "slots": list() as slots, "to": int() as to, "operator": str() as name}:
            ranges = slot_ranges([tuple(each) if isinstance(each, list) else each for each in slots], "preview")
            if not 0 <= to < live.routing[live.named("preview", name)[0]].instances:
                raise QueryError(where="preview", wanted=f"an instance of {name}", found=str(to))
            return lambda _, before: before.moved(ranges, InstanceId(to))
    wanted = f"rescale with instances from 1 to {INSTANCES_MAX}, rebalance, or move with slots, to and operator"
    raise QueryError(where="preview", wanted=wanted, found=json.dumps(dict(request))[:200])


def _told(live: LiveRouting, name: OperatorId, before: Routing, after: Routing) -> dict[str, Any]:
    work = live.work.slots.get(name)
    known = work is not None and bool(work.any())
    weights = work if work is not None and known else np.ones(SLOTS)
    return {
        "instancesBefore": before.instances,
        "instances": after.instances,
        "slotsMoved": after.moved_from(before),
        "measured": known,
        "sharesBefore": _shares(before, weights),
        "shares": _shares(after, weights),
        "spread": [list(each) for each in after.spread],
    }


def _shares(routing: Routing, weights: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    """Each instance's share of the work. The work of spread slots is every instance's."""
    own, spread = weights.copy(), 0.0
    for lo, hi in routing.spread:
        spread += float(own[int(lo) : int(hi)].sum())
        own[int(lo) : int(hi)] = 0.0
    total = max(float(weights.sum()), 1e-300)
    return [round((load + spread / routing.instances) / total, 4) for load in routing.loads(own)]
