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
        return Pin(**json.loads((self.package / "pin.json").read_text()))

    def write_pin(self, pin):
        text = json.dumps(dataclasses.asdict(pin), indent=4) + "\n"
        write_file(self.package / "pin.json", text.encode())


def write_file(path, data):
    """Writes `data` so that a reader sees the old or the new file, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(data)
    os.replace(scratch, path)
