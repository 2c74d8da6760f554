"""Reads lists of tests with reasons; needs nothing but the standard library."""

from pathlib import Path

SEPARATOR = "  # "


def read_reasons(path):
    """Reads a list: a node id, two spaces, `#` and the reason, a line.

    Args:
        path: The file.

    Returns:
        A dict of reasons by node id.

    Raises:
        ValueError: if a line gives no reason or repeats a node id.
    """
    reasons = {}
    lines = Path(path).read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        node_id, separator, reason = line.partition(SEPARATOR)
        node_id, reason = node_id.strip(), reason.strip()
        if not separator or not node_id or not reason:
            raise ValueError(
                f"{path}:{number}: expected `NODE ID{SEPARATOR}REASON`, "
                f"got: {line}"
            )
        if node_id in reasons:
            raise ValueError(f"{path}:{number}: {node_id} is listed twice.")
        reasons[node_id] = reason
    return reasons
