"""What an instance task is told: plain data, which is pickled into the task."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from headrace.ids import InstanceId, OperatorId, Version, WriterId
from headrace.logs import log_fields
from headrace.operators.kernel import Moment, Operator
from headrace.state.conversion import Conversion
from headrace.state.durable import DurableStore
from headrace.state.routing import Routing
from headrace.state.run import RunRef
from headrace.state.sequence import VersionStep


@dataclass(frozen=True)
class TaskSpec:
    """All that an instance task needs to know."""

    store: DurableStore
    """Where state is durable, and staged results are."""
    query: str
    """The checkpoint location, for log messages."""
    operator: Operator
    operator_id: OperatorId
    version: Version
    writer: WriterId
    moment: Moment
    refs: dict[str, tuple[RunRef, ...]]
    """By store: references to its runs."""
    routing: Routing
    ones: tuple[str, ...]
    counts_rows: str | None
    sync: bool
    depth_max: int
    compact_rows: int
    compact_factor: float
    passes_on: bool
    """True if results are not staged: they go to the next operator of the job, or to a sink that keeps nothing."""
    working: str | None = None
    """The folder of an executor's working copies, see ``working_folder``. None if tasks read the runs of the checkpoint itself."""
    cache_bytes: int = 0
    """How much working copies may take up on an executor; 0: any amount."""
    until_ms: int | None = None
    """In a flush: close what is due up to this watermark. Rows come only from the flush of other operators. None in the first step."""
    writes_home: bool = False
    """True if new runs stay with the working copies of this executor, until a checkpoint ships them to the durable store."""
    driver_reads: bool = True
    """True if the driver can read all state, so that it may do a small flush itself."""
    boundaries: tuple[Version, ...] = ()
    """Versions whose state is durable, or is being made durable. Compaction merges no runs across them."""
    pinned: frozenset[str] = frozenset()
    """Runs that a checkpoint is about to ship. They stay, although newer versions may not need them."""
    fail_points: str = ""
    """The fail points that tests have set in the driver."""
    earlier: Mapping[str, tuple[Conversion, ...]] = field(default_factory=dict)
    """By store: how runs are read that were written before the query was changed."""
    log_level: str = ""
    """What a worker prints to its stderr; see ``Config.logLevel``."""

    def log_fields(self, instance: InstanceId) -> AbstractContextManager[None]:
        """Inside, log messages say which instance of which operator they are about."""
        return log_fields(query=self.query, version=self.version, operator=self.operator_id, instance=instance)

    @property
    def works_here(self) -> bool:
        """True if new runs are first written to the working copies."""
        return self.writes_home or self.store.local is None

    @property
    def step(self) -> VersionStep:
        return VersionStep.PROCESS if self.until_ms is None else VersionStep.FLUSH
