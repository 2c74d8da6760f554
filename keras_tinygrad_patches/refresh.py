"""Turns edits of the materialised tree into the patches they belong to."""

import json
import pathlib
import re

from keras_tinygrad_patches.git import tidy_diff
from keras_tinygrad_patches.project import Failure
from keras_tinygrad_patches.project import write_file
from keras_tinygrad_patches.series import Patch
from keras_tinygrad_patches.series import is_test_path
from keras_tinygrad_patches.series import write_all
from keras_tinygrad_patches.tree import STAMP
from keras_tinygrad_patches.tree import blob_id
from keras_tinygrad_patches.tree import find_edits
from keras_tinygrad_patches.tree import install
from keras_tinygrad_patches.tree import keras_files
from keras_tinygrad_patches.tree import read_stack
from keras_tinygrad_patches.tree import read_written
from keras_tinygrad_patches.tree import write_written
from keras_tinygrad_patches.tree import writing

COMMAND = "python -m keras_tinygrad_patches refresh"


def refresh(project, paths=(), patch=None, new=None, message=(), tree=None):
    """Folds local edits of upstream files into the patch series.

    Each edit goes to the patch that touches its file, or, where several do,
    the one that touches its lines.

    Args:
        project: `Project`.
        paths: Paths below the top of the tree to take edits of; all edits
            and new files by default. A file that is gone counts as an edit
            only where it is named.
        patch: Name of the patch that takes the edits.
        new: Name of a patch to make of them.
        message: Strings for the new patch: why it is needed; or its subject
            and, after that, why.
        tree: Directory that `materialise` made, to take edits from in place
            of the checkout's own `keras/`.

    Returns:
        List of strings that say what happened to which patch.

    Raises:
        Failure: If there is nothing to take, or it is unclear where it
            belongs. Series and tree are then unchanged.
    """
    source = _Source(project, tree)
    stack = read_stack(project, tests=True, overlay=source.overlay)
    head = stack.head if source.tests else stack.main_head
    source.check(head)
    contents = source.read_edits(stack.repository, head, paths)
    edited = stack.repository.import_files(contents, "edits\n", parent=head)

    patches = list(stack.patches)
    if new:
        patches = _add_patch(patches, new, message, contents)
        patch = new
    if patch:
        parts = {_find_patch(patches, patch): edited}
    else:
        parts = _split(stack, head, contents, edited)
    for index in parts:
        _check_kind(patches[index], stack, parts[index])

    commits = _fold(stack, patches, parts)
    source.verify(stack.repository, patches, commits, contents)
    kept, report = _describe(stack, patches, commits)
    with writing(stack.repository, source.directory):
        write_all(project, kept)
        source.finish(contents)
    return report


class _Source:
    """The tree that the edits are in."""

    def __init__(self, project, tree):
        self.project = project
        self.directory = project.root
        self.tests, self.overlay, self.stamp = False, None, None
        if tree is not None:
            self.directory = pathlib.Path(tree).resolve()
            self.stamp = self.directory / STAMP
            if not self.stamp.exists():
                raise Failure(f"{tree} was not written by `materialise`.")
            record = json.loads(self.stamp.read_text())
            self.tests, self.overlay = record["tests"], record["overlay"]
            self.commit = record["commit"]
        else:
            self.commit, _ = read_written(project)

    def check(self, head):
        if self.commit not in (None, head):
            raise Failure(
                f"{self.directory}/keras was made from another pin or series "
                "than the present one. Bring those back (`git stash "
                "keras_tinygrad_patches`), run this, and merge the series."
            )

    def read_edits(self, repository, head, paths):
        expected = keras_files(repository, head)
        edits = find_edits(self.directory, expected)
        names = {pathlib.PurePath(path).as_posix() for path in paths}
        chosen = [
            path
            for path in (*edits.changed, *edits.added)
            if not names or path in names
        ]
        gone = [path for path in edits.missing if path in names]
        strange = names - {*chosen, *gone}
        if strange:
            raise Failure(
                f"There is no edit in {', '.join(sorted(strange))}. Paths are "
                "given from the top of the tree, as in keras/src/x.py."
            )
        if not chosen and not gone:
            raise Failure(
                f"No upstream file under {self.directory}/keras was edited."
            )
        contents = {
            path: (self.directory / path).read_bytes() for path in chosen
        }
        binary = [path for path, data in contents.items() if b"\0" in data]
        if binary:
            raise Failure(
                f"The series holds text only, and {', '.join(binary)} is "
                "binary. Nothing was changed."
            )
        return {**contents, **dict.fromkeys(gone)}

    def verify(self, repository, patches, commits, contents):
        """Makes sure that the new series gives the edited files back."""
        main = sum(not patch.tests for patch in patches)
        commit = commits[-1] if self.tests else commits[main - 1]
        files = repository.files(commit)
        for path, data in contents.items():
            blob = None if data is None else blob_id(data)
            taken_apart = is_test_path(path) and not self.tests
            if files.get(path) != blob and not taken_apart:
                raise Failure(
                    f"The edits to {path} overlap several patches in a way "
                    "that does not give the file back. Take them one by one: "
                    f"`{COMMAND} {path} --patch NAME`. Nothing was changed."
                )

    def finish(self, contents):
        """Records the new head, and brings the edited files to it."""
        stack = read_stack(self.project, tests=self.tests, overlay=self.overlay)
        expected = keras_files(stack.repository, stack.head)
        install(
            stack.repository, stack.head, self.directory, only=contents.keys()
        )
        if self.stamp is None:
            write_written(self.project, stack.head, expected)
            return
        record = json.loads(self.stamp.read_text())
        record.update(commit=stack.head, files=expected)
        write_file(self.stamp, json.dumps(record).encode())


def _find_patch(patches, name):
    for index, patch in enumerate(patches):
        if patch.name == name:
            return index
    names = ", ".join(patch.name for patch in patches) or "none"
    raise Failure(f"There is no patch {name}. The series have: {names}.")


def _add_patch(patches, name, message, contents):
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise Failure(f"A patch is named like `some-topic`, not {name}.")
    if any(patch.name == name for patch in patches):
        raise Failure(f"There is a patch {name} already. Use --patch {name}.")
    if not message or not all(part.strip() for part in message):
        raise Failure(
            f"Say why the patch {name} is needed: it cannot live in the "
            "backend package because ..., and is not needed any more when "
            "...: -m 'Subject' -m 'Why'."
        )
    if re.search(r"^(---|diff --git )", "\n".join(message), re.MULTILINE):
        raise Failure(
            "No line of a patch's message may begin with `---` or `diff "
            "--git`, where its diff begins. Nothing was changed."
        )
    subject, *reason = message
    if not reason:
        subject, reason = name.replace("-", " ").capitalize(), message
    tests = all(is_test_path(path) for path in contents)
    fresh = Patch(name, "\n\n".join([subject, *reason]) + "\n", "", tests=tests)
    position = len(patches)
    if not tests:
        position = sum(not patch.tests for patch in patches)
    return [*patches[:position], fresh, *patches[position:]]


def _check_kind(patch, stack, commit):
    """Patches to upstream's tests are kept apart from the others."""
    before, after = (
        stack.repository.files(c)
        for c in (stack.repository.text("rev-parse", f"{commit}^"), commit)
    )
    paths = [
        path
        for path in {*before, *after}
        if before.get(path) != after.get(path)
    ]
    wrong = sorted(p for p in paths if is_test_path(p) is not patch.tests)
    if wrong:
        kind = "upstream's tests" if patch.tests else "what is not a test"
        raise Failure(
            f"The patch {patch.name} is for {kind}, and {', '.join(wrong)} is "
            f"not. Take the files apart: `{COMMAND} PATH ... --patch NAME`, "
            "or `--new NAME -m WHY`."
        )


def _split(stack, head, contents, edited):
    """Finds the patch for each edit.

    Returns:
        Dict of the index of a patch to a commit with its share of the edits,
        each the parent of the next.
    """
    shares = {}
    for path in contents:
        owners = [
            index
            for index, patch in enumerate(stack.patches)
            if path in patch.files
        ]
        if not owners:
            raise Failure(
                f"No patch touches {path} yet. Name the one that shall: "
                f"`{COMMAND} --patch NAME`, or make one: `{COMMAND} --new NAME "
                "-m WHY`."
            )
        if len(owners) == 1:
            shares.setdefault(owners[0], {})[path] = None
            continue
        if contents[path] is None:
            raise Failure(
                f"Several patches touch {path}, which is gone. Name the one "
                f"that shall delete it: `{COMMAND} {path} --patch NAME`."
            )
        lines = _blame(stack, head, path)
        for hunk in _hunks(stack.repository, head, edited, path):
            owner = _owner(lines, hunk, path)
            shares.setdefault(owner, {}).setdefault(path, []).append(hunk)
    return _share_commits(stack, head, contents, shares)


def _share_commits(stack, head, contents, shares):
    old = stack.repository.files(head)
    parts, done, parent = {}, {}, head
    for index in sorted(shares):
        files = {}
        for path, hunks in shares[index].items():
            if hunks is None:
                files[path] = contents[path]
                continue
            done.setdefault(path, []).extend(hunks)
            text = stack.repository.read([old[path]])[old[path]]
            files[path] = _patch_lines(text, contents[path], done[path])
        parent = stack.repository.import_files(files, "edits\n", parent=parent)
        parts[index] = parent
    return parts


_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@$", re.M)


def _hunks(repository, old, new, path):
    """Line ranges `(old start, old end, new start, new end)`, from 0."""
    text = repository.git(
        "diff-tree", "-p", "-U0", "--no-renames", old, new, "--", path
    ).stdout.decode(errors="replace")
    hunks = []
    for match in _HUNK.finditer(tidy_diff(text)):
        start, count, new_start, new_count = (
            1 if group is None else int(group) for group in match.groups()
        )
        # Git counts from 1, and an empty range from the line before it.
        start = start - 1 if count else start
        new_start = new_start - 1 if new_count else new_start
        hunks.append((start, start + count, new_start, new_start + new_count))
    return hunks


def _patch_lines(old, new, hunks):
    old, new = old.splitlines(True), new.splitlines(True)
    result, position = [], 0
    for start, end, new_start, new_end in sorted(hunks):
        result += old[position:start] + new[new_start:new_end]
        position = end
    return b"".join(result + old[position:])


def _blame(stack, head, path):
    """For each line of a file, the index of the patch it is from, or `None`."""
    index_of = {
        commit: index
        for index, commit in enumerate(stack.commits)
        if commit != (stack.commits[index - 1] if index else stack.base)
    }
    text = stack.repository.text(
        "blame", "--line-porcelain", f"{stack.base}..{head}", "--", path
    )
    return [
        index_of.get(line.split()[0])
        for line in text.splitlines()
        if re.match(r"[0-9a-f]{40} ", line)
    ]


def _owner(lines, hunk, path):
    start, end = hunk[:2]
    owners = set(lines[start:end]) - {None}
    if not owners:
        owners = set(lines[max(start - 1, 0) : end + 1]) - {None}
    if len(owners) != 1:
        raise Failure(
            f"Several patches touch {path}, and the edit at line {start + 1} "
            f"is next to {'more than one' if owners else 'none'} of them. Name "
            f"the one it belongs to: `{COMMAND} {path} --patch NAME`."
        )
    return owners.pop()


def _fold(stack, patches, parts):
    """Replays the series with the edits folded in.

    Returns:
        List of commits, one for each of `patches`.
    """
    old = {p.name: c for p, c in zip(stack.patches, stack.commits)}
    before = {
        p.name: c
        for p, c in zip(stack.patches, [stack.base, *stack.commits[:-1]])
    }
    parent, commits = stack.base, []
    with stack.repository.worktree(stack.base) as worktree:
        for index, patch in enumerate(patches):
            worktree.move(parent)
            conflicts = []
            if old.get(patch.name, "") not in ("", before.get(patch.name)):
                conflicts = worktree.pick(old[patch.name])
            if index in parts and not conflicts:
                conflicts = _pick_onto(worktree, parent, parts[index])
            if conflicts:
                raise Failure(
                    f"The edit to {', '.join(conflicts)} depends on lines that "
                    f"a patch after {patch.name} brings, or changes lines that "
                    "it needs. Name that patch: `"
                    f"{COMMAND} {' '.join(conflicts)} --patch NAME`. Nothing "
                    "was changed."
                )
            parent = worktree.commit(parent, patch.message, patch.author)
            commits.append(parent)
    return commits


def _pick_onto(worktree, parent, edit):
    """Picks an edit on top of what is staged, with an honest merge base."""
    staged = worktree.git("write-tree").stdout.decode().strip()
    worktree.move(
        worktree.repository.commit_tree(staged, parent, "staged\n", "x <x@x>")
    )
    return worktree.pick(edit)


def _describe(stack, patches, commits):
    """The patches as they are now, without the empty ones, and a report."""
    old = {patch.name: patch for patch in stack.patches}
    kept, report = [], []
    for patch, commit, parent in zip(
        patches, commits, [stack.base, *commits[:-1]]
    ):
        if commit == parent:
            before = old.get(patch.name)
            if before and _is_skipped(stack, patch.name):
                kept.append(before)
                continue
            report.append(f"{patch.name}: empty now, and gone")
            continue
        fresh = Patch(
            patch.name,
            patch.message,
            stack.repository.diff(parent, commit),
            patch.author,
            patch.tests,
        )
        kept.append(fresh)
        if patch.name not in old:
            report.append(f"{patch.name}: new")
        elif fresh.diff != old[patch.name].diff:
            report.append(f"{patch.name}: changed")
    return kept, report


def _is_skipped(stack, name):
    """Whether a patch is for tests that this release does not ship."""
    names = [patch.name for patch in stack.patches]
    index = names.index(name)
    parent = stack.commits[index - 1] if index else stack.base
    return stack.commits[index] == parent
