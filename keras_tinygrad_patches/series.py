"""The patch series: reading, writing, and applying it exactly."""

import dataclasses
import email
import email.policy
import hashlib
import re

from keras_tinygrad_patches import project as project_lib
from keras_tinygrad_patches.git import AUTHOR
from keras_tinygrad_patches.git import tidy_diff
from keras_tinygrad_patches.project import Failure

FIRST_LINE = "From " + "0" * 40 + " Mon Sep 17 00:00:00 2001"


@dataclasses.dataclass(frozen=True)
class Patch:
    """One topic: what it changes, and why.

    Attributes:
        name: String, the file's name without `.patch`.
        message: String, the subject, an empty line, and the reason.
        diff: String, the change, as `Repository.diff` writes it.
        author: String, `"Name <address>"`.
        tests: Whether it belongs to the series for upstream's tests.
    """

    name: str
    message: str
    diff: str
    author: str = AUTHOR
    tests: bool = False

    @classmethod
    def parse(cls, name, text, tests=False):
        """Reads a patch in git's mail format.

        Raises:
            Failure: If `text` is not such a patch.
        """
        head, found, diff = text.partition("\ndiff --git ")
        if not found:
            raise Failure(f"The patch {name} holds no `diff --git`.")
        mail = email.message_from_bytes(
            head.encode(), policy=email.policy.default
        )
        subject = re.sub(r"^\[PATCH[^]]*\] *", "", mail.get("Subject", ""))
        if not subject:
            raise Failure(f"The patch {name} has no `Subject:` line.")
        reason = f"\n{mail.get_content()}\n".partition("\n---\n")[0].strip()
        message = f"{subject}\n\n{reason}\n" if reason else f"{subject}\n"
        diff = re.sub(r"\n-- \n[^\n]*\n*\Z", "\n", f"diff --git {diff}")
        return cls(
            name,
            message,
            tidy_diff(diff),
            str(mail.get("From", AUTHOR)),
            tests,
        )

    def __str__(self):
        subject, _, reason = self.message.partition("\n")
        lines = [
            FIRST_LINE,
            f"From: {self.author}",
            f"Subject: [PATCH] {subject}",
            'Content-Type: text/plain; charset="utf-8"',
            "Content-Transfer-Encoding: 8bit",
            "",
            *([reason.strip()] if reason.strip() else []),
            "---",
            "",
            self.diff,
        ]
        return "\n".join(lines)

    @property
    def files(self):
        """The paths that the patch changes."""
        return re.findall(r"^diff --git a/.+ b/(.+)$", self.diff, re.MULTILINE)


def is_test_path(path):
    """Whether changes of a path belong to the series for upstream's tests."""
    return path.endswith(("_test.py", "conftest.py")) or path.startswith(
        "keras/src/testing/"
    )


def read_series(project, tests=False):
    """The patches of one series, in order.

    Args:
        project: `Project`.
        tests: Whether to read the series for upstream's tests.

    Raises:
        Failure: If the series names a patch that does not exist, a patch is
            left out of it, or one cannot be read.
    """
    directory = project.test_patches if tests else project.patches
    listing = directory / "series"
    names = project_lib.read_text(listing).split() if listing.exists() else []
    present = {path.stem for path in directory.glob("*.patch")}
    if sorted(names) != sorted(present):
        odd = ", ".join(sorted(set(names) ^ present)) or "a name listed twice"
        raise Failure(
            f"{listing.relative_to(project.root)} and the patches next to it "
            f"differ: {odd}. List each patch once, without `.patch`."
        )
    return [
        Patch.parse(
            name, project_lib.read_text(directory / f"{name}.patch"), tests
        )
        for name in names
    ]


def read_all(project):
    """Both series: the main one, then the one for upstream's tests."""
    return read_series(project) + read_series(project, tests=True)


def digest(patches):
    """What tells two lists of patches apart."""
    text = "\0".join(f"{patch.name}\0{patch}" for patch in patches)
    return hashlib.sha256(text.encode()).hexdigest()


def write_all(project, patches):
    """Makes both series hold just `patches`."""
    for tests in (False, True):
        directory = project.test_patches if tests else project.patches
        chosen = [patch for patch in patches if patch.tests is tests]
        for patch in chosen:
            project_lib.write_file(
                directory / f"{patch.name}.patch", str(patch).encode()
            )
        names = [patch.name for patch in chosen]
        project_lib.write_file(
            directory / "series", "".join(f"{n}\n" for n in names).encode()
        )
        for path in directory.glob("*.patch"):
            if path.stem not in names:
                path.unlink()


def apply_patches(repository, base, patches):
    """Applies patches to an upstream release, one commit each.

    Args:
        repository: `Repository`.
        base: Commit of the release.
        patches: List of `Patch`.

    Returns:
        List of commits, one for each patch. A patch for tests that the
        release does not ship has the commit before it.

    Raises:
        Failure: If a patch does not apply, or only with an offset.
    """
    commits = []
    for count, patch in enumerate(patches, 1):
        parent = commits[-1] if commits else base
        ref = f"refs/applied/{base}/{digest(patches[:count])}"
        commit = repository.find(ref)
        if commit is None:
            commit = _apply(repository, parent, patch)
            repository.keep(ref, commit)
        commits.append(commit)
    return commits


def apply_with_offset(repository, parent, patch):
    """Applies a patch at whatever lines it fits.

    Returns:
        Tuple of the commit and git's complaint, one of them `None`.
    """
    with repository.index(parent) as git:
        done = git(
            *("apply", "--cached", "--whitespace=nowarn"),
            data=patch.diff.encode(),
            check=False,
        )
        if done.returncode:
            return None, done.stderr.decode(errors="replace").strip()
        tree = git("write-tree").stdout.decode().strip()
    return (
        repository.commit_tree(tree, parent, patch.message, patch.author),
        None,
    )


def is_out_of_reach(patch, files):
    """Whether a patch is for tests that a release does not ship."""
    return patch.tests and not any(path in files for path in patch.files)


def _apply(repository, parent, patch):
    if is_out_of_reach(patch, repository.files(parent)):
        return parent
    commit, error = apply_with_offset(repository, parent, patch)
    if commit is None:
        raise Failure(
            f"The patch {patch.name} does not apply to the pinned release:\n"
            f"{error}\n{_REMEDY}"
        )
    if repository.diff(parent, commit) != patch.diff:
        raise Failure(
            f"The patch {patch.name} does not apply exactly: its lines stand "
            "elsewhere in the pinned release, or it was not written by "
            f"`refresh`.\n{_REMEDY}"
        )
    return commit


_REMEDY = (
    "Nothing was changed. If the pin or the patch was edited by hand, restore "
    "it (`git checkout keras_tinygrad_patches`). To move to another release, "
    "use shell/rebase.sh VERSION; to change a patch, edit the file under "
    "keras/ and run `python -m keras_tinygrad_patches refresh`."
)
