"""Bytes and seconds as people write them."""

UNITS = ("B", "kB", "MB", "GB", "TB")


def format_seconds(seconds: float) -> str:
    """A duration for people."""
    seconds = max(0, round(seconds))
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"


def format_size(num: float) -> str:
    """Bytes for people."""
    for unit in UNITS:
        if num < 1000 or unit == UNITS[-1]:
            return f"{num:.0f} {unit}" if unit == "B" or num >= 100 else f"{num:.1f} {unit}"
        num /= 1000
    raise AssertionError("the last unit returns")


def parse_size(text: str) -> int:
    """`500MB`, `2 GB` or a number of bytes; raises ValueError for anything else."""
    text = text.strip().upper()
    for power, unit in reversed(list(enumerate(UNITS))):
        if text.endswith(unit.upper()):
            return int(float(text.removesuffix(unit.upper())) * 1000**power)
    return int(float(text))
