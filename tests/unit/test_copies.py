"""Who has which runs: what executors lack, who lends it, and what is lost."""

from __future__ import annotations

import pyarrow as pa

from headrace.ids import RunSeq
from headrace.runtime.lending import Share
from headrace.runtime.safety import shipping
from headrace.runtime.safety.copies import Copies
from headrace.spark.executors import Executor
from headrace.state.layout import Layout
from headrace.state.run import RunRef

LAYOUT = Layout(keys=(("k0", pa.int64()),), values=(("p0", pa.int64()),))
ONE, TWO, THREE = (Executor(str(number), f"host{number}", 1) for number in (1, 2, 3))


def ref(file: str, size: int = 10) -> RunRef:
    return RunRef(file, size, 0, 1, RunSeq(0))


def share(*files: str) -> tuple[Share, ...]:
    return (Share(LAYOUT, tuple(ref(file) for file in files)),)


def test_what_is_durable_or_at_home_is_not_lent() -> None:
    copies = Copies(durable={"a"}, holders={"b": {"1"}, "c": {"2"}})
    lack = copies.lack([(ONE, share("a", "b"))], [ONE, TWO])
    assert not lack.loans
    assert not lack.lost
    lack = copies.lack([(ONE, share("a", "b", "c"))], [ONE, TWO])
    assert {lender.id: [(loan.ref.file, loan.to, loan.whole) for loan in each] for lender, each in lack.loans.items()} == {
        "2": [("c", 0, True)]
    }


def test_a_run_that_only_a_lost_executor_has_is_lost() -> None:
    copies = Copies(durable={"a"}, holders={"a": {"3"}, "b": {"3"}})
    assert copies.lack([(ONE, share("a", "b"))], [ONE, TWO]).lost == {"b"}
    assert not copies.lack([(ONE, share("a", "b"))], [ONE, THREE]).lost


def test_peers_get_copies_of_durable_runs_too() -> None:
    copies = Copies(durable={"a"}, holders={"a": {"1"}})
    lack = copies.lack([(TWO, share("a")), (THREE, share("a"))], [ONE, TWO, THREE], durable_suffices=False)
    assert lack.files == [(0, "a"), (1, "a")]
    copies.forget("a", "1")
    lack = copies.lack([(TWO, share("a"))], [ONE, TWO], durable_suffices=False)
    assert not lack.files, "it is read from the durable store"
    assert not lack.lost


def test_the_heir_is_who_has_most_of_the_state() -> None:
    copies = Copies(holders={"a": {"1", "2"}, "b": {"2"}, "c": {"1"}, "d": {"3"}})
    assert copies.heir(share("a", "b", "c"), ["1", "2"]) == "1", "equal ones: the first"
    assert copies.heir(share("a", "b"), ["1", "2"]) == "2"
    assert copies.heir(share("d"), ["1", "2"]) is None


def test_runs_are_shipped_in_rounds_of_bounded_size() -> None:
    huge, large = ref("huge", shipping.ROUND_BYTES * 2), ref("large", shipping.ROUND_BYTES - 10)
    portions = list(shipping.rounds({ONE: [ref("a"), huge, large, ref("b")], TWO: [ref("c")], THREE: []}))
    assert [{executor.id: [r.file for r in refs] for executor, refs in each.items()} for each in portions] == [
        {"1": ["huge"], "2": ["c"]},
        {"1": ["large", "a"]},
        {"1": ["b"]},
    ]
