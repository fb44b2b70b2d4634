"""Decides what happens to stored state when a query has changed: it is kept, changed, computed again, or the start is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.compile.dataflow import Dataflow, Op
from headrace.compile.lineage import Lineage
from headrace.errors import CheckpointMismatchError, QueryError, StateSchemaError
from headrace.ids import OperatorId, StoreId
from headrace.logs import logger
from headrace.runtime.changes import Policy
from headrace.runtime.checkpoint import describe_layout
from headrace.runtime.evolution import Evolution, evolution
from headrace.runtime.matching import NEW_LOCATION
from headrace.state.conversion import Conversion

_log = logger(__name__)
_BACKFILL = "query.replace(..., backfill=True) or option('headrace.operatorChanges', 'backfill')"


@dataclass
class TakenOver:
    """What becomes of the operators that have found their stored state, by their ids in the query."""

    evolved: dict[OperatorId, tuple[str, ...]] = field(default_factory=dict)
    rebuilt: list[OperatorId] = field(default_factory=list)
    """Operators whose state is computed again from history."""
    not_kept: list[OperatorId] = field(default_factory=list)
    """Operators whose stored state does not fit, and which start empty."""
    earlier: dict[OperatorId, Mapping[str, tuple[Conversion, ...]]] = field(default_factory=dict)

    def applied(self, flow: Dataflow) -> Dataflow:
        """The query, with what is needed to read stored runs."""
        return replace(flow, ops=tuple(replace(op, earlier=self.earlier.get(op.id, {})) for op in flow.ops))


def take_over(
    location: str,
    flow: Dataflow,
    stored: dict[str, Any],
    ids: Mapping[OperatorId, OperatorId],
    same_input: Callable[[Op, OperatorId], bool],
    policy: Policy,
) -> TakenOver:
    """Compare the state of each operator with what is stored for it. Raises an error for what the policy does not allow.

    ``ids`` are the stored operators, by those of the query.
    """
    found = TakenOver()
    unknown = policy.rebuilt - {str(each) for op in flow.ops for each in (op.id, op.name, ids.get(op.id)) if each is not None}
    if unknown:
        wanted = f"operators of the new query: {', '.join(op.name or op.id for op in flow.ops)}"
        raise QueryError(where="backfill", wanted=wanted, found=", ".join(sorted(unknown)))
    for op in (op for op in flow.ops if op.id in ids):
        name = ids[op.id]
        change = evolution(op, name, stored["operators"], policy.renamed, same_input(op, name))
        asked = not policy.rebuilt.isdisjoint({op.id, op.name, name})
        if asked or (policy.backfills and (change.refused or change.added)):
            found.rebuilt.append(op.id)
            continue
        nameless = op.name is None and stored["identities"][name]["name"] is None
        if change.refused and nameless and policy.allows_loss and not policy.explicit:
            found.not_kept.append(op.id)
            continue
        if change.refused or not (change.is_safe or policy.allows_loss):
            raise _does_not_fit(f"{location}, operator {name!r} ({op.where})", change)
        found.earlier[op.id] = {store.name: each for store, each in change.earlier.items() if each}
        if change.changes:
            found.evolved[op.id] = change.changes
            text = f"{location}: the state of {name} changes: {'; '.join(change.changes)}"
            if change.is_safe or policy.explicit:
                _log.info("%s", text)
            else:
                warnings.warn(text, stacklevel=3)
    return found


def _does_not_fit(where: str, change: Evolution) -> StateSchemaError:
    refused = "; ".join(change.refused)
    hint = f"undo the change; or let the state be computed from the sources' history: {_BACKFILL}"
    if not refused:
        lost = [f"{each} would start without the rows before" for each in change.added] + [f"{each} would go" for each in change.dropped]
        refused = "; ".join(lost)
        hint += "; or option('headrace.operatorChanges', 'accept') to allow that"
    found = _with(refused, change.changes)
    return StateSchemaError(
        where=where, wanted="columns of the state that are there, or that lose nothing", found=found, hint=f"{hint}; or {NEW_LOCATION}"
    )


def _with(refused: str, changes: Sequence[str]) -> str:
    return f"{refused} (in all: {'; '.join(changes)})" if changes else refused


def accept_or_refuse(
    location: str,
    known: dict[OperatorId, Lineage],
    stored: dict[str, Any],
    sources: list[dict[str, Any]],
    new: list[Op],
    gone: list[OperatorId],
    policy: Policy,
) -> None:
    """Raise an error unless the policy allows that operators are new or gone. ``sources`` are those of the query now."""
    if not policy.allows_loss:
        alike = [name for op in new[:1] for name in gone if stored["identities"][name]["kind"] == op.plan.kind]
        raise _changed(location, sources, new[0], known[new[0].id], alike[0], stored) if alike else _more_or_less(location, new, gone)
    for op in new:
        if op.plan.initial is not None and not policy.backfills:
            wanted = "a new checkpoint for an operator with initial state"
            raise CheckpointMismatchError(where=f"{location}, {op.where}", wanted=wanted, found="one that has versions", hint=NEW_LOCATION)
        twins = [n for n, each in stored["identities"].items() if each["fingerprint"] == known[op.id].fingerprint and n not in gone]
        if twins and op.name is None:
            wanted = f"a name for a new operator that computes what {twins[0]!r} does"
            raise CheckpointMismatchError(where=f"{location}, {op.where}", wanted=wanted, found="none", hint="call .named('...') on it")
    if policy.explicit:
        return
    if new and not policy.backfills:
        names = ", ".join(f"{op.id} ({op.where})" for op in new)
        warnings.warn(f"{location}: new operators start with empty state, without the rows before now: {names}", stacklevel=2)
    if gone:
        warnings.warn(f"{location}: the query no longer has these operators, and their state is dropped: {', '.join(gone)}", stacklevel=2)


def _changed(
    location: str, sources: list[dict[str, Any]], op: Op, now: Lineage, name: OperatorId, stored: dict[str, Any]
) -> CheckpointMismatchError | StateSchemaError:
    """The error for an operator that differs from the stored one in its place."""
    then = stored["identities"][name]
    parts = {part: (then["computes"].get(part), now.computes.get(part)) for part in {**then["computes"], **now.computes}}
    layouts = {
        f"layout of {store}": (stored["operators"].get(store, {}).get("layout"), describe_layout(each.layout))
        for store, each in ((str(StoreId(name, key)), each) for key, each in op.plan.operator.stores.items())
    }
    differing = {part: pair for part, pair in {**parts, **layouts}.items() if pair[0] != pair[1]}
    if not differing or then["reads"] != [list(each) for each in now.reads]:
        old, new = (_only(a, b) for a, b in ((then["reads"], now.reads), (now.reads, then["reads"])))
        differing = {"input": (old, new), **differing}
    about: dict[str, Any] = next(iter(each for store, each in stored["operators"].items() if StoreId.parse(store).operator == name), {})
    same_state = all(about.get(part) == op.plan.description.shown.get(part) for part in ("keys", "window", "calls"))
    same_state = same_state and not any(part.startswith("layout") for part in differing)
    same_sources = sorted(each["reads"] for each in stored["sources"]) == sorted(each["reads"] for each in sources)
    keep = f"; or, if it is to go on with that state, call .named({name!r}) on it" if same_state and same_sources else ""
    of_state = "keys" not in differing and set(differing) - {"input", "window", "operator"}
    kind = StateSchemaError if of_state else CheckpointMismatchError
    return kind(
        where=f"{location}, operator {name!r} ({op.where})",
        wanted="the operator whose state is stored: " + "; ".join(f"{part} {old}" for part, (old, _) in differing.items()),
        found="; ".join(f"{part} {new}" for part, (_, new) in differing.items()),
        hint=f"undo the change, or {NEW_LOCATION}{keep}; option('headrace.operatorChanges', 'accept') drops the state and starts empty",
    )


def _only(one: Any, other: Any) -> str:
    """The lines of the first description that the second does not have."""
    theirs = {line.strip() for each in other for line in each}
    own = [line.strip() for each in one for line in each if line.strip() not in theirs]
    return "; ".join(own) or "the same lines in another order"


def _more_or_less(location: str, new: list[Op], gone: list[OperatorId]) -> CheckpointMismatchError:
    parts = []
    if new:
        parts.append("new: " + ", ".join(f"{op.id} ({op.where})" for op in new))
    if gone:
        parts.append("missing: " + ", ".join(gone))
    return CheckpointMismatchError(
        where=location,
        wanted="the operators whose state is in this checkpoint",
        found="; ".join(parts),
        hint="option('headrace.operatorChanges', 'accept'): new ones then start with empty state, without the rows before now, and the "
        f"state of missing ones is dropped; with 'backfill', new ones are computed from the sources' history. Or {NEW_LOCATION}",
    )
