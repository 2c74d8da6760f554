"""The materialised tree: written, compared, and never overwritten unasked."""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import tempfile

try:
    import fcntl
except ImportError:  # On Windows.
    fcntl = None

from keras_tinygrad_patches import upstream
from keras_tinygrad_patches.git import Repository
from keras_tinygrad_patches.project import BACKEND
from keras_tinygrad_patches.project import Failure
from keras_tinygrad_patches.project import write_file
from keras_tinygrad_patches.series import apply_patches
from keras_tinygrad_patches.series import read_all
from keras_tinygrad_patches.series import read_series
from keras_tinygrad_patches.signals import deferred

# In a tree outside the checkout: which commit it holds.
STAMP = ".keras_tinygrad_tree.json"
REFRESH = "python -m keras_tinygrad_patches refresh"
STATUS = "python -m keras_tinygrad_patches status"
STAGE = ".stage-"


@dataclasses.dataclass(frozen=True)
class Stack:
    """A release and the patches on it, as commits of the scratch repository.

    Attributes:
        repository: `Repository`.
        base: Commit of the release.
        patches: List of `Patch`, the main series first.
        commits: List of commits, one for each patch.
    """

    repository: Repository
    base: str
    patches: list
    commits: list

    @property
    def head(self):
        return self.commits[-1] if self.commits else self.base

    @property
    def main_head(self):
        """The commit without the patches to upstream's tests."""
        main = [patch for patch in self.patches if not patch.tests]
        return self.commits[len(main) - 1] if main else self.base


def read_stack(project, tests=False, checkout=None, overlay=None):
    """Makes sure that the pinned release and the patches are commits.

    Args:
        project: `Project`.
        tests: Whether to apply the patches to upstream's tests too.
        checkout: Directory of an upstream checkout, for a pinned tag.
        overlay: Tuple of an upstream checkout's directory and a tag of it, to
            take from it the files that releases leave out.

    Returns:
        A `Stack`.
    """
    repository = Repository(project.cache / "git")
    patches = read_all(project) if tests else read_series(project)
    base = upstream.import_pinned(project, repository, checkout)
    if overlay:
        base = _add_left_out_files(repository, base, *overlay)
    return Stack(
        repository, base, patches, apply_patches(repository, base, patches)
    )


def _add_left_out_files(repository, base, checkout, tag):
    present = repository.files(base)
    files = {
        path: contents
        for path, contents in upstream.read_tag(checkout, tag).items()
        if path.startswith("keras/src/") and path not in present
    }
    return repository.import_files(
        files, f"Add what releases leave out, from {tag}\n", parent=base
    )


def keras_files(repository, commit):
    """Dict of path to blob id, of what belongs under `keras/`."""
    return {
        path: blob
        for path, blob in repository.files(commit).items()
        if path.startswith("keras/")
    }


def blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def scan(directory):
    """Dict of path to blob id, of the upstream files in a directory.

    The backend, hidden files and what Python compiles are not upstream's.
    """
    found = {}
    for folder, folders, names in os.walk(directory / "keras"):
        here = pathlib.Path(folder)
        where = here.relative_to(directory).as_posix()
        folders[:] = [
            name
            for name in folders
            if name != "__pycache__"
            and not name.startswith(".")
            and f"{where}/{name}" != BACKEND
        ]
        for name in names:
            if not name.startswith(".") and not name.endswith(".pyc"):
                found[f"{where}/{name}"] = blob_id((here / name).read_bytes())
    return found


@dataclasses.dataclass(frozen=True)
class Edits:
    """How a tree differs from what was written there.

    Attributes:
        changed: List of paths with other contents.
        added: List of paths that were not written.
        missing: List of paths that are gone.
    """

    changed: list
    added: list
    missing: list

    def __bool__(self):
        return bool(self.changed or self.added or self.missing)

    def __str__(self):
        return self.listing(10)

    def listing(self, limit=None):
        """Lists the paths, a line for each.

        Args:
            limit: Number of paths of a kind that are named; by default, all.
        """
        lines = []
        for kind in ("changed", "added", "missing"):
            paths = getattr(self, kind)
            named = paths[:limit]
            lines += [f"    {kind} {path}" for path in named]
            if len(named) < len(paths):
                lines.append(f"    and {len(paths) - len(named)} more {kind}")
        return "\n".join(lines)


def find_edits(directory, expected, written=None):
    """Compares a tree with what should be and with what was written there.

    Args:
        directory: `pathlib.Path` that holds `keras`.
        expected: Dict of path to blob id, what should be there.
        written: Dict of path to blob id, what was written last; by default
            the same.

    Returns:
        `Edits`. What is as it should be is no edit, nor is a tree that is not
        there at all.
    """
    written = expected if written is None else written
    found = scan(directory)
    changed, added = [], []
    for path, blob in sorted(found.items()):
        if blob in (expected.get(path), written.get(path)):
            continue
        known = path in expected or path in written
        (changed if known else added).append(path)
    present = (directory / "keras" / "__init__.py").exists()
    missing = sorted(
        path
        for path in expected
        if present and path in written and path not in found
    )
    return Edits(changed, added, missing)


@contextlib.contextmanager
def writing(repository, directory):
    """What is written in the block is written alone, and all of it.

    Other processes wait, an interruption is put off to the end, and what
    killed processes left in the tree goes.

    Args:
        repository: `Repository`.
        directory: `pathlib.Path` that holds `keras`.
    """
    with open(repository.path / "writing", "wb") as file:
        alone = _lock(file)
        with deferred():
            if alone:
                for stage in (directory / "keras").glob(f"{STAGE}*"):
                    shutil.rmtree(stage)
            yield


def _lock(file):
    """Waits for the lock on a file; returns whether there are such locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # Not every file system has them.
        return False
    return True


def install(repository, commit, directory, written=None, only=None):
    """Writes the upstream files of a commit; all of them, or none.

    Args:
        repository: `Repository`.
        commit: The commit.
        directory: `pathlib.Path` to hold `keras`.
        written: Dict of path to blob id, what was written last: what is not
            in the commit any more goes.
        only: Paths to bring to the commit's state; by default, all.

    Returns:
        Number of files written or removed.
    """
    expected = keras_files(repository, commit)
    found = scan(directory)
    fresh = {
        path: blob
        for path, blob in expected.items()
        if found.get(path) != blob and (only is None or path in only)
    }
    stale = [
        path
        for path in ((written or {}) if only is None else only)
        if path in found and path not in expected
    ]
    (directory / "keras").mkdir(parents=True, exist_ok=True)
    stage = pathlib.Path(
        tempfile.mkdtemp(prefix=STAGE, dir=directory / "keras")
    )
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, stage)
        contents = repository.read(fresh.values())
        for path, blob in fresh.items():
            target = stage / "new" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents[blob])
        restore = undo.enter_context(contextlib.ExitStack())
        for path in (*stale, *fresh):
            _swap(directory / path, stage / "old" / path, restore)
            if path in fresh:
                (directory / path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(stage / "new" / path, directory / path)
        restore.pop_all()
    for path in stale:
        _prune((directory / path).parent)
    return len(fresh) + len(stale)


def _swap(path, aside, restore):
    """Moves a file aside, and says how to take that back."""
    if path.exists():
        aside.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, aside)
        restore.callback(os.replace, aside, path)
    else:
        restore.callback(path.unlink, missing_ok=True)


def _prune(folder):
    """Removes folders that hold nothing but compiled files."""
    while folder.exists() and {p.name for p in folder.iterdir()} <= {
        "__pycache__"
    }:
        shutil.rmtree(folder)
        folder = folder.parent


def read_written(project):
    """The commit and files that `vendor` wrote last, or `(None, None)`."""
    path = project.cache / "written.json"
    if not path.exists():
        return None, None
    record = json.loads(path.read_text())
    return record["commit"], record["files"]


def write_written(project, commit, files):
    record = {"commit": commit, "files": files}
    write_file(project.cache / "written.json", json.dumps(record).encode())


def vendor(project, force=False, checkout=None):
    """Makes `keras/` the pinned release with the patch series applied.

    Args:
        project: `Project`.
        force: Whether to overwrite local edits.
        checkout: Directory of an upstream checkout, for a pinned tag.

    Returns:
        String that says what was done.

    Raises:
        Failure: If files were edited, or the tree cannot be made; it is then
            unchanged.
    """
    stack = read_stack(project, checkout=checkout)
    expected = keras_files(stack.repository, stack.head)
    written = read_written(project)[1]
    edits = find_edits(project.root, expected, written)
    if edits.changed and not force:
        raise Failure(describe_edits(edits))
    with writing(stack.repository, project.root):
        count = install(stack.repository, stack.head, project.root, written)
        write_written(project, stack.head, expected)
    pin = project.read_pin()
    lines = [
        f"keras/ holds Keras {pin.version} with {len(stack.patches)} patches: "
        + (f"{count} files written." if count else "up to date.")
    ]
    if edits.missing:
        lines.append(f"{len(edits.missing)} missing files are back.")
    if edits.added:
        lines.append(
            f"Not upstream's, and left alone (`{STATUS}` lists all):\n"
            + str(Edits([], edits.added, []))
        )
    return "\n".join(lines)


def describe_edits(edits):
    return (
        f"Upstream files under keras/ were edited here:\n{edits}\n"
        f"Nothing was changed. `{STATUS}` lists all edits, and `{REFRESH}` "
        "turns them into a patch; `python -m keras_tinygrad_patches vendor "
        "--force` throws them away."
    )


def require_clean(project):
    """The `Stack` of a tree that is just what `vendor` makes.

    Raises:
        Failure: If the tree differs in any way.
    """
    stack = read_stack(project)
    expected = keras_files(stack.repository, stack.head)
    edits = find_edits(project.root, expected)
    if not (project.root / "keras" / "__init__.py").exists():
        raise Failure("keras/ is not there yet. Run shell/vendor.sh first.")
    if edits:
        raise Failure(
            f"keras/ is not the pinned release with the patches:\n{edits}\n"
            f"Run shell/vendor.sh if the pin or the series moved, or "
            f"`{REFRESH}` to turn edits into a patch. Nothing was changed."
        )
    return stack


def status(project):
    """Describes pin, series and tree.

    Returns:
        Tuple of a string and whether all is as it should be.
    """
    pin = project.read_pin()
    lines = [f"Upstream: Keras {pin.version} ({pin.file})"]
    for patch in read_all(project):
        kind = "test patch" if patch.tests else "patch"
        lines.append(f"{kind} {patch.name}: {patch.message.splitlines()[0]}")
    stack = read_stack(project)
    expected = keras_files(stack.repository, stack.head)
    written = read_written(project)[1]
    edits = find_edits(project.root, expected, written)
    found = scan(project.root)
    behind = any(found.get(path) != blob for path, blob in expected.items())
    if edits:
        lines.append(f"keras/ was edited (see `{REFRESH} --help`):")
        lines.append(edits.listing())
    elif behind:
        lines.append("keras/ is not up to date. Run shell/vendor.sh.")
    else:
        lines.append("keras/ is up to date.")
    return "\n".join(lines), not (edits or behind)


def copy_backend(project, directory):
    """Copies our backend, without compiled files, into a tree."""
    target = directory / BACKEND
    shutil.rmtree(target, ignore_errors=True)
    if (project.root / BACKEND).exists():
        shutil.copytree(
            project.root / BACKEND,
            target,
            ignore=shutil.ignore_patterns("__pycache__", "*.pyc", ".*"),
        )


def materialise(project, directory, tests=False, overlay=None):
    """Writes a whole tree, our backend included, somewhere else.

    It can be brought up to date by calling this again. `refresh --tree` turns
    edits in it into patches.

    Args:
        project: `Project`.
        directory: `pathlib.Path`, to hold `keras`. New, empty, or made by
            this function.
        tests: Whether to apply the patches to upstream's tests too.
        overlay: Tuple of an upstream checkout's directory and a tag of it, to
            take from it the files that releases leave out. Without a tag
            (`None`), the one of the pinned version.

    Raises:
        Failure: If the directory holds something else, or edited files.
    """
    if overlay:
        overlay = (overlay[0], overlay[1] or f"v{project.read_pin().version}")
    directory = pathlib.Path(directory).resolve()
    stamp = directory / STAMP
    record = json.loads(stamp.read_text()) if stamp.exists() else None
    if record is None and directory.exists() and any(directory.iterdir()):
        raise Failure(
            f"{directory} is not empty and was not written by `materialise`. "
            "Give a new directory. Nothing was changed."
        )
    stack = read_stack(project, tests, overlay=overlay)
    expected = keras_files(stack.repository, stack.head)
    written = record["files"] if record else {}
    edits = find_edits(directory, expected, written)
    if edits.changed:
        raise Failure(
            f"Files in {directory} were edited:\n{edits}\nNothing was changed. "
            f"`{REFRESH} --tree {directory}` turns the edits into a patch."
        )
    record = {
        "tests": tests,
        "overlay": [str(part) for part in overlay] if overlay else None,
        "commit": stack.head,
        "files": expected,
    }
    with writing(stack.repository, directory):
        install(stack.repository, stack.head, directory, written)
        copy_backend(project, directory)
        write_file(stamp, json.dumps(record).encode())
    skipped = [
        patch.name
        for patch in stack.patches
        if patch.tests and not any(path in expected for path in patch.files)
    ]
    return skipped
