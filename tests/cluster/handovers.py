"""Every protocol of a hand-over on executors, with and without a loss: ``python -m tests.cluster.handovers WORK [kill]``.

The query of ``windows``: slots of the first instance move to the second one and back, by one protocol after the other. With ``kill``, the
executor of the old owner is killed right after each change. Each window must come once, and be that of plain Python. It prints the changes
that the query reported for each protocol, and who had worked on what, as one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from headrace.chaos.processes import die_with, pid_of
from headrace.control.handover import Protocol
from tests.cluster import windows
from tests.cluster.program import wait_until

SLOTS = [(0, 600)]


class Story(windows.Story):
    def hand_over(self, protocol: Protocol, old: int, new: int, kill: bool) -> dict[str, Any]:
        """Move the slots, and let windows close. Returns what was seen."""
        before = len(self.batches)
        old_home = self.batches[-1]["homes"][old]
        self.query.move(SLOTS, to=new, protocol=str(protocol))
        (routing,) = self.query.routing().values()
        recreations = len(routing.recreations)
        if kill:
            os.kill(pid_of(old_home, self.app), signal.SIGKILL)
            wait_until("the loss", lambda: old_home not in {each.id for each in self.executors.live()})
        self.feed(4)
        if protocol is Protocol.MERGE and not kill:
            wait_until("the old state", lambda: self._arrived(before))
        wait_until("three executors", lambda: len(self.executors.live()) == 3)
        self.feed()
        changes = [change for batch in self.batches[before:] for change in batch["changes"]]
        (routing,) = self.query.routing().values()
        return {"changes": changes, "recreations": [recreations, len(routing.recreations)]}

    def _arrived(self, before: int) -> bool:
        """Feed a batch. True if one of those since ``before`` reports that the old state has arrived."""
        self.feed()
        return any("arrived" in change["why"] for batch in self.batches[before:] for change in batch["changes"])


def main() -> None:
    threading.Thread(target=die_with, args=(os.getppid(),), daemon=True).start()
    work, *kill = sys.argv[1:]
    story = Story(Path(work), {})
    story.feed(4)
    seen = {}
    for at, protocol in enumerate(Protocol):
        seen[str(protocol)] = story.hand_over(protocol, at % 2, 1 - at % 2, bool(kill))
    print(json.dumps(story.end() | {"protocols": seen}))


if __name__ == "__main__":
    main()
