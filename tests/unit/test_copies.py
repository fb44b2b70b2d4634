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
    copies = Copies(durable={"v1-a"}, holders={"v1-b": {"1"}, "v1-c": {"2"}})
    lack = copies.lack([(ONE, share("v1-a", "v1-b"))], [ONE, TWO])
    assert not lack.loans
    assert not lack.lost
    lack = copies.lack([(ONE, share("v1-a", "v1-b", "v1-c"))], [ONE, TWO])
    assert {lender.id: [(loan.ref.file, loan.to, loan.whole) for loan in each] for lender, each in lack.loans.items()} == {
        "2": [("v1-c", 0, True)]
    }


def test_a_run_that_only_a_lost_executor_has_is_lost() -> None:
    copies = Copies(durable={"v1-a"}, holders={"v1-a": {"3"}, "v1-b": {"3"}})
    assert copies.lack([(ONE, share("v1-a", "v1-b"))], [ONE, TWO]).lost == {"v1-b"}
    assert not copies.lack([(ONE, share("v1-a", "v1-b"))], [ONE, THREE]).lost


def test_initial_state_is_always_durable() -> None:
    assert not Copies().lack([(ONE, share("initial-sum-e1x00000000-0-5.arrow"))], [ONE]).lost


def test_peers_get_copies_of_durable_runs_too() -> None:
    copies = Copies(durable={"v1-a"}, holders={"v1-a": {"1"}})
    lack = copies.lack([(TWO, share("v1-a")), (THREE, share("v1-a"))], [ONE, TWO, THREE], durable_suffices=False)
    assert lack.files == [(0, "v1-a"), (1, "v1-a")]
    copies.forget("v1-a", "1")
    lack = copies.lack([(TWO, share("v1-a"))], [ONE, TWO], durable_suffices=False)
    assert not lack.files, "it is read from the durable store"
    assert not lack.lost


def test_the_heir_is_who_has_most_of_the_state() -> None:
    copies = Copies(holders={"v1-a": {"1", "2"}, "v1-b": {"2"}, "v1-c": {"1"}, "v1-d": {"3"}})
    assert copies.heir(share("v1-a", "v1-b", "v1-c"), ["1", "2"]) == "1", "equal ones: the first"
    assert copies.heir(share("v1-a", "v1-b"), ["1", "2"]) == "2"
    assert copies.heir(share("v1-d"), ["1", "2"]) is None


def test_parcels_are_shipped_in_order_and_in_rounds_of_bounded_size() -> None:
    huge, large = ref("huge", shipping.ROUND_BYTES * 2), ref("large", shipping.ROUND_BYTES - 10)
    of_one = [shipping.Parcel("u", (each,)) for each in (ref("v1-a"), huge, large, ref("v1-b"))]
    portions = list(shipping.rounds({ONE: of_one, TWO: [shipping.Parcel("w", (ref("v1-c"),))], THREE: []}))
    assert [{executor.id: [each.name for each in parcels] for executor, parcels in now.items()} for now in portions] == [
        {"1": ["v1-a"], "2": ["v1-c"]},
        {"1": ["huge"]},
        {"1": ["large", "v1-b"]},
    ]
