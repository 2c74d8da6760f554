"""Where the fork keeps its files, and the upstream release it is pinned to."""

import dataclasses
import json
import os
import pathlib

BACKEND = "keras/src/backend/tinygrad"


class Failure(Exception):
    """What went wrong and what to do, in words for the person at the prompt."""


@dataclasses.dataclass(frozen=True)
class Pin:
    """The upstream release that the fork is made of.

    Attributes:
        version: String, the upstream version.
        file: String, the file name of the release's wheel; or, where the tree
            comes from an upstream checkout, `"git:"` and the tag.
        sha256: String, the digest of that wheel (or of that tree).
    """

    version: str
    file: str
    sha256: str

    def __post_init__(self):
        for name, value in vars(self).items():
            if not isinstance(value, str):
                raise TypeError(f"`{name}` is not a string")

    @property
    def tag(self):
        """The tag of an upstream checkout, or `None` for a wheel."""
        prefix, _, tag = self.file.partition("git:")
        return tag if not prefix and tag else None


@dataclasses.dataclass(frozen=True)
class Project:
    """A checkout of this repository.

    Attributes:
        root: `pathlib.Path`, the top of the checkout.
    """

    root: pathlib.Path

    @classmethod
    def here(cls):
        """The checkout that holds this package.

        Raises:
            Failure: If the package is installed rather than checked out.
        """
        root = pathlib.Path(__file__).resolve().parents[1]
        if not (root / "pip_build.py").exists():
            raise Failure(
                "This command works on a checkout of the repository, and the "
                "package is an installed copy. Run it from the top of a "
                "checkout; `doctor` works anywhere."
            )
        return cls(root)

    @property
    def package(self):
        return self.root / "keras_tinygrad_patches"

    @property
    def patches(self):
        return self.package / "patches"

    @property
    def test_patches(self):
        return self.patches / "tests"

    @property
    def cache(self):
        return self.root / ".vendor"

    def read_pin(self):
        """The `Pin`.

        Raises:
            Failure: If the file holds something else.
        """
        path = self.package / "pin.json"
        text = read_text(path)
        try:
            return Pin(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise Failure(
                f"{os.path.relpath(path)} holds no pin: {error}. Expected is a "
                "JSON object of the strings `version`, `file` and `sha256`. "
                "Resolve the conflict if git left one there. "
                f"{_restore(path)}"
            ) from None

    def write_pin(self, pin):
        text = json.dumps(dataclasses.asdict(pin), indent=4) + "\n"
        write_file(self.package / "pin.json", text.encode())


def read_text(path):
    """The text of a committed file.

    Raises:
        Failure: If it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(
            f"{os.path.relpath(path)} cannot be read: {error}. Expected is "
            f"text in UTF-8. {_restore(path)}"
        ) from None


def _restore(path):
    return (
        f"`git checkout HEAD {os.path.relpath(path)}` brings the committed "
        "file back. Nothing was changed."
    )


def write_file(path, data):
    """Writes `data` so that a reader sees the old or the new file, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(data)
    os.replace(scratch, path)
