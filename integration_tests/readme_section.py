"""Sections of README.md that a command writes, between two comments."""

from integration_tests import environments

README = environments.REPOSITORY / "README.md"
END = "<!-- end -->"


def read(command):
    """Returns the text of the section that `command` writes.

    Args:
        command: The command, as README names it.

    Raises:
        ValueError: If README lacks the section's marks.
    """
    return _split(command)[1].strip()


def write(command, text):
    """Puts `text` into the section that `command` writes.

    Args:
        command: The command, as README names it.
        text: Markdown.

    Raises:
        ValueError: If README lacks the section's marks.
    """
    before, _, after = _split(command)
    README.write_text(f"{before}\n{text.strip()}\n\n{after}")


def _split(command):
    begin = f"<!-- made by: {command} -->\n"
    before, found, rest = README.read_text().partition(begin)
    inside, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(
            f"README.md needs the lines `{begin.strip()}` and `{END}`, for "
            "what the command writes between them."
        )
    return before + begin, inside, end + after
