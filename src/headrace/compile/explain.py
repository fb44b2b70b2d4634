"""A plan in words."""

from __future__ import annotations

from headrace.compile.plan import StatefulPlan
from headrace.graph.nodes import Step
from headrace.ids import SLOTS
from headrace.state.slots import even_ranges


def explain(plan: StatefulPlan, suffix: tuple[Step, ...], instances: int, mode: str, guarantee: str) -> str:
    """Subqueries, routing, instances, and what runs where."""
    about = plan.description
    lines = ["== Headrace plan =="]
    lines.append("source      Spark (JVM): " + ", ".join(plan.selected.columns))
    combine = "before the shuffle, while it shrinks the batch" if plan.many is not None else "no, rows are shipped as they are"
    lines.append("combine     Spark (JVM): " + combine)
    lines.append(f"route       {SLOTS} slots of xxhash64 over {len(plan.operator.layout.keys)} key column(s), one shuffle")
    for instance, ranges in enumerate(even_ranges(instances)):
        lines.append(f"  instance {instance}: slots " + ", ".join(f"{lo}-{hi - 1}" for lo, hi in ranges))
    lines.append(f"{about['operator']:<11} Python over Arrow, output mode {mode}")
    for name in ("keys", "window", "aggregates", "calls"):
        value = about.get(name)
        if value:
            lines.append(f"  {name + ':':<12}" + (", ".join(value) if isinstance(value, list) else str(value)))
    lines.append(f"  {'state:':<12}{', '.join(f'{f.name} {f.type}' for f in plan.operator.layout.schema)} ({plan.operator.layout.policy})")
    lines.append("finish      Spark (JVM): " + ", ".join(plan.schema.names))
    lines.extend(f"then        Spark (JVM): {step}" for step in suffix)
    lines.append(f"deliver     {guarantee}")
    return "\n".join(lines)
