"""The windows over which words are counted."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import HeadraceError

DELAY_S = 1
"""The delay of the watermark. Fragments come in order of event time, except between the partitions of a batch."""


@dataclass(frozen=True)
class Window:
    """A window of event time; without a size it is the whole stream."""

    name: str
    size_s: int | None = None
    advance_s: int = 0

    @property
    def slides(self) -> bool:
        return self.size_s is not None and self.advance_s < self.size_s

    @property
    def mode(self) -> str:
        return "append" if self.slides else "update"


WINDOWS = {
    window.name: window
    for window in (
        Window("running"),
        Window("30s", 30, 30),
        Window("15min", 900, 15),
        Window("1h", 3600, 60),
        Window("12h", 43_200, 720),
    )
}


def windows_of(option: str, text: str) -> list[Window]:
    """Parse names of windows, separated by commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in WINDOWS]
    if unknown or not names:
        raise HeadraceError(where=f"bench word-frequency {option}", wanted=f"some of {','.join(WINDOWS)}", found=text or "nothing")
    return [WINDOWS[name] for name in names]
