"""Numbers as the reasons of decisions show them."""

from __future__ import annotations


def percent(share: float) -> str:
    """A measured share, with one decimal.

    >>> percent(0.5432)
    '54.3%'
    """
    return f"{share:.1%}"


def limit(share: float) -> str:
    """A share from the settings, as the user would write it.

    >>> limit(0.7), limit(0.045)
    ('70%', '4.5%')
    """
    return f"{100 * share:g}%"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things, singular or plural.

    >>> counted(1, "slot"), counted(682, "slot"), counted(2, "batch", "batches")
    ('1 slot', '682 slots', '2 batches')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def size_change(before: int, after: int) -> str:
    """What happens to the number of instances.

    >>> size_change(4, 7), size_change(2, 1)
    ('scale out 4 → 7', 'scale in 2 → 1')
    """
    return f"scale {'out' if after > before else 'in'} {before} → {after}"


def size_text(size: float) -> str:
    """A number of bytes, with three digits or fewer.

    >>> size_text(0), size_text(9_300_000), size_text(512), size_text(123_000_000_000)
    ('0 B', '9.3 MB', '512 B', '123 GB')
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if size >= 99.95 or units[0] == "B" else f"{size:.1f} {units[0]}"
