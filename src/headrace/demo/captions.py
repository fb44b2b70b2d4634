"""Sentences about a run of the demo. Each is computed from what was recorded, so it says what happened, whatever that is."""

from __future__ import annotations

import numpy as np

from headrace.demo.measure import Followed, Recording, followed, hotness, latencies, undisturbed


def seconds(value: float | None) -> str:
    """A duration as short text.

    >>> [seconds(x) for x in (None, 0.412, 2.345, 61.0)]
    ['-', '0.4 s', '2.3 s', '61 s']
    """
    if value is None:
        return "-"
    return f"{value:.1f} s" if value < 9.95 else f"{value:.0f} s"


def many(count: float, what: str) -> str:
    """A number of things.

    >>> many(1, "instance"), many(1200, "call")
    ('1 instance', '1,200 calls')
    """
    return f"{count:,.0f} {what}{'' if count == 1 else 's'}"


def instances(run: Recording) -> str:
    """Whether the number of instances followed the rate."""
    counts = [p.instances for p in run.points]
    if not counts:
        return "No batch was recorded."
    found = follows(run)
    path = [count for at, count in enumerate(counts) if not at or count != counts[at - 1]]
    if len(path) == 1:
        return f"The number of instances did not follow the rate: {many(counts[0], 'instance')} all the time."
    went = " → ".join(map(str, path))
    apart = ", the time from the kill until it had caught up left aside" if run.mark("kill") else ""
    figures = f"{found.high:.1f} on average at the highest fifth of the rates, {found.low:.1f} at the lowest{apart}"
    if found.yes:
        return f"Instances followed the rate: {went}; {figures} (correlation {found.correlation:.2f}, {found.lag_s} s later)."
    return f"The number of instances did not follow the rate: {went}; {figures} (correlation {found.correlation:.2f} at best)."


def follows(run: Recording) -> Followed:
    """The figures behind `instances`."""
    return followed(run.rate(), run.instances(), undisturbed(run))


def latency(run: Recording, partitions: int) -> str:
    """How long calls took in both lanes."""
    static, elastic = (latencies(run.arrivals, done, run.seconds) for done in (run.static, run.elastic))
    each = [f"median {seconds(lane.percentile(0.5))}, longest {seconds(lane.percentile(1.0))}" for lane in (static, elastic)]
    text = f"Plain Spark with {many(partitions, 'partition')}: {each[0]}. Headrace: {each[1]}."
    killed, back = run.mark("kill"), run.mark("back")
    if killed is None:
        return text
    longest = [seconds(lane.within(0.0, killed.at_s - 3.0).percentile(1.0)) for lane in (static, elastic)]
    text += (
        f" Of the calls that came until shortly before the kill, the longest took {longest[0]} on plain Spark and {longest[1]} on Headrace."
    )
    return text if back else text + " After the kill, Headrace's lane did not come back in this time."


def compared(run: Recording, partitions: int) -> list[tuple[str, str, str]]:
    """The figures of both lanes: what it is, plain Spark's, Headrace's."""
    static, elastic = (latencies(run.arrivals, done, run.seconds) for done in (run.static, run.elastic))
    killed = run.mark("kill")
    until_s = killed.at_s - 3.0 if killed else run.seconds
    counts = [point.instances for point in run.points] or [0]
    shares = (("median", 0.5, run.seconds), ("longest, until the kill", 1.0, until_s), ("longest", 1.0, run.seconds))
    rows = []
    for name, share, end_s in shares:
        each = [seconds(lane.within(0.0, end_s).percentile(share)) for lane in (static, elastic)]
        rows.append((f"latency, {name}", each[0], each[1]))
    ended = [latencies(run.arrivals, [d for d in done if d.at_s <= run.seconds], run.seconds) for done in (run.static, run.elastic)]
    rows.append(("calls that wait at the end", f"{ended[0].behind:,}", f"{ended[1].behind:,}"))
    least, most = min(counts), max(counts)
    return [*rows, ("partitions, instances", str(partitions), f"{least} to {most}" if least < most else str(most))]


def behind(run: Recording) -> str:
    """How far the static lane is behind when the last call has come."""
    lane = latencies(run.arrivals, [each for each in run.static if each.at_s <= run.seconds], run.seconds)
    other = latencies(run.arrivals, [each for each in run.elastic if each.at_s <= run.seconds], run.seconds)
    return (
        f"When the last call came, {many(lane.behind, 'call')} waited on plain Spark, the oldest for {seconds(lane.oldest_s)}, "
        f"and {many(other.behind, 'call')} on Headrace, the oldest for {seconds(other.oldest_s)}."
    )


def hot(run: Recording) -> str:
    """What happened to the hot key."""
    marked, cool = run.mark("hot"), run.mark("cool")
    found = hotness(run.points, marked.at_s + 0.5) if marked else None
    if marked is None or found is None:
        return "No hot key was seen."
    until_s = (cool.at_s if cool else run.seconds) + 2
    moved = [m for m in run.marks if m.kind in ("moved", "change", "rebalance") and marked.at_s < m.at_s < until_s]
    asked = run.mark("rebalance")
    changes = f"{many(len(moved), 'change')} of the slots' owners" + (
        f", with headrace ctl rebalance at {asked.at_s:.0f} s" if asked else ""
    )
    text = (
        f"From {marked.at_s:.0f} s slot {found.slot} had up to {found.share:.0%} of the calls, since one customer made so many. "
        f"When that was noticed, its instance had {found.before:.0%} of all calls"
    )
    if found.alone_s is not None:
        return f"{text}; from {found.alone_s:.0f} s on it had hardly any others ({changes})."
    return f"{text}, and at the least {found.after:.0%} later ({changes}): it was not left alone."


def kill(run: Recording) -> str:
    """What happened when the driver was killed."""
    killed, back = run.mark("kill"), run.mark("back")
    if killed is None:
        return "Nothing was killed."
    text = f"At {killed.at_s:.0f} s the driver of Headrace's lane was ended by kill -9"
    if back is None:
        return f"{text}, and had not finished a batch again when the demo ended."
    lane = latencies(run.arrivals, run.elastic, run.seconds)
    after = lane.within(killed.at_s - 3, back.at_s).percentile(1.0)
    # It has caught up with the first call that took no longer than the longest before.
    usual = lane.within(run.seconds * 0.05, killed.at_s - 3).percentile(0.99) or 0.0
    late = lane.came_s[(lane.came_s > killed.at_s - 3) & (lane.waited_s > usual)]
    until = (
        f"; calls that came after {late.max() + 0.2:.0f} s took at most {seconds(usual)}, as 99% of those before"
        if len(late) and late.max() < run.seconds - 1
        else ""
    )
    return (
        f"{text}. It was started again, as a supervisor does, and finished its next batch {seconds(back.at_s - killed.at_s)} later, "
        f"from its checkpoint. The longest wait was {seconds(after)}{until}."
    )


def rate(run: Recording, capacity: float, partitions: int) -> str:
    """The rate, and what the static lane can do."""
    per_s = run.rate()
    if not len(per_s):
        return "No call came."
    takes_ms = 1000 * partitions / capacity
    return (
        f"{per_s.min():,.0f} to {per_s.max():,.0f} calls/s, {np.mean(per_s):,.0f} on average. The tariff service takes {takes_ms:.0f} ms "
        f"for a call, so a partition can process at most {capacity / partitions:,.0f} a second, one after the other."
    )


def utilisation(run: Recording, limits: dict[str, float]) -> str:
    """How often the utilisation was outside the policy's limits."""
    known = [p.busy for p in run.points if p.busy is not None and p.at_s > 0]
    if not known:
        return "The demo was too short for the policy to see anything."
    above, below = sum(u > limits["upper"] for u in known), sum(u < limits["lower"] for u in known)
    return (
        f"As the policy sees it: above the upper limit of {limits['upper']:.0%} in {above} of {len(known)} batches, "
        f"below the lower one of {limits['lower']:.0%} in {below}; from {min(known):.0%} to {max(known):.0%}."
    )
