"""Replays the patch series onto another release, by three-way merges."""

import dataclasses
import difflib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from keras_tinygrad_patches import series
from keras_tinygrad_patches import upstream
from keras_tinygrad_patches.git import Repository
from keras_tinygrad_patches.git import Worktree
from keras_tinygrad_patches.project import Failure
from keras_tinygrad_patches.project import Pin
from keras_tinygrad_patches.project import write_file
from keras_tinygrad_patches.signals import deferred
from keras_tinygrad_patches.tree import STATUS
from keras_tinygrad_patches.tree import Edits
from keras_tinygrad_patches.tree import copy_backend
from keras_tinygrad_patches.tree import describe_edits
from keras_tinygrad_patches.tree import find_edits
from keras_tinygrad_patches.tree import install
from keras_tinygrad_patches.tree import keras_files
from keras_tinygrad_patches.tree import read_stack
from keras_tinygrad_patches.tree import read_written
from keras_tinygrad_patches.tree import write_written
from keras_tinygrad_patches.tree import writing

COMMAND = "shell/rebase.sh"
# Not the line of `=`, which underlines headings as well.
MARKERS = (b"<<<<<<< ", b">>>>>>> ")


@dataclasses.dataclass
class State:
    """A rebase under way, as `state.json` keeps it between commands.

    Attributes:
        pin: `Pin` of the new release.
        base: Commit of the new release.
        old_base: Commit of the old one.
        old: List of commits, the series on the old release.
        series: String, digest of the series when the rebase began.
        new: List of commits, what is replayed so far.
        stopped: Whether the next patch waits in the worktree, in conflict.
    """

    pin: Pin
    base: str
    old_base: str
    old: list
    series: str
    new: list = dataclasses.field(default_factory=list)
    stopped: bool = False

    @classmethod
    def read(cls, path):
        fields = json.loads(path.read_text())
        return cls(**{**fields, "pin": Pin(**fields["pin"])})

    def write(self, path):
        write_file(path, json.dumps(dataclasses.asdict(self)).encode())


def run(project, version=None, keras_git=None, mode=None, say=print):
    """Rebases the series, or goes on with or drops a rebase.

    Args:
        project: `Project`.
        version: String, a release of the package index.
        keras_git: Tuple of the directory of an upstream checkout and a tag of
            it, in place of `version`.
        mode: `None`, `"check"`, `"continue"` or `"abort"`.
        say: Function that takes each piece of the report.

    Raises:
        Failure: If the rebase cannot be done, or has stopped at a conflict.
            Pin, series and tree are then as they were.
    """
    home = project.cache / "rebase"
    under_way = (home / "state.json").exists()
    if mode in ("continue", "abort"):
        if version or keras_git:
            raise Failure(f"--{mode} takes no release.")
        if not under_way:
            raise Failure("There is no rebase under way.")
    elif (version is None) is (keras_git is None):
        raise Failure("Give a VERSION, or --keras-git DIR TAG: one of them.")
    elif mode is None and under_way:
        raise Failure(
            f"A rebase has stopped before. `{COMMAND} --continue` goes on with "
            f"it, `{COMMAND} --abort` drops it."
        )
    if mode == "abort":
        shutil.rmtree(home)
        Repository(project.cache / "git").git("worktree", "prune")
        say("The rebase is dropped. Pin, series and keras/ are as they were.")
    elif mode == "continue":
        _Rebase(project, home, say).resume()
    elif mode == "check":
        project.cache.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=project.cache) as scratch:
            scratch = pathlib.Path(scratch)
            _Rebase(project, scratch, say, check=True).start(version, keras_git)
    else:
        _Rebase(project, home, say).start(version, keras_git)


class _Rebase:
    """One rebase, whose state and worktree are in the directory `home`."""

    def __init__(self, project, home, say, check=False):
        self.project = project
        self.home = home
        self.say = say
        self.check = check
        self.repository = Repository(project.cache / "git")
        self.patches = series.read_all(project)

    def start(self, version, keras_git):
        try:
            self._start(version, keras_git)
        finally:
            # A check keeps no state, nor does a rebase that did not stop.
            if not (self.home / "state.json").exists():
                shutil.rmtree(self.home, ignore_errors=True)
                self.repository.git("worktree", "prune")

    def _start(self, version, keras_git):
        stack = read_stack(self.project, tests=True)
        if not self.check:
            self._refuse_edits(stack)
        if keras_git:
            pin, base = upstream.import_tag(self.repository, *keras_git)
        else:
            pin, base = upstream.import_release(
                self.project, self.repository, version
            )
        self.say(
            f"From Keras {self.project.read_pin().version} to {pin.version} "
            f"({pin.file}, SHA-256 {pin.sha256}):"
        )
        self.state = State(pin, base, stack.base, stack.commits, self._digest())
        self.home.mkdir(parents=True, exist_ok=True)
        self.worktree = Worktree.add(self.repository, self.home / "tree", base)
        self._go_on()

    def resume(self):
        self.state = State.read(self.home / "state.json")
        if self.state.series != self._digest():
            raise Failure(
                "The series was changed since the rebase began. `git checkout "
                "keras_tinygrad_patches` brings it back; or drop the rebase: "
                f"`{COMMAND} --abort`."
            )
        self._refuse_edits(read_stack(self.project, tests=True))
        self.worktree = Worktree(self.repository, self.home / "tree")
        if self.state.stopped:
            with deferred():
                self._take_resolution()
        self._go_on()

    def _refuse_edits(self, stack):
        expected = keras_files(self.repository, stack.main_head)
        written = read_written(self.project)[1]
        edits = find_edits(self.project.root, expected, written)
        if edits.changed:
            raise Failure(describe_edits(edits))

    def _digest(self):
        return series.digest(self.patches)

    @property
    def _parent(self):
        return self.state.new[-1] if self.state.new else self.state.base

    def _go_on(self):
        for index in range(len(self.state.new), len(self.patches)):
            self._replay(index)
        result = self._finished_patches()
        self._compare_requirements()
        self._test()
        if self.check:
            self.say("The series replays cleanly, and nothing was changed.")
        else:
            self._write(result)

    def _replay(self, index):
        patch = self.patches[index]
        old = [self.state.old_base, *self.state.old]
        files = self.repository.files(self._parent)
        if series.is_out_of_reach(patch, files):
            self.state.new.append(self._parent)
            return
        if old[index] == old[index + 1]:
            self.state.new.append(self._apply_anew(patch))
            return
        self.worktree.move(self._parent)
        if self.worktree.pick(old[index + 1]):
            self._stop(patch)
        self._commit(patch)

    def _apply_anew(self, patch):
        """Applies a test patch that the old release had no use for."""
        commit, error = series.apply_with_offset(
            self.repository, self._parent, patch
        )
        if commit is None:
            raise Failure(
                f"The patch {patch.name} was kept while releases did not ship "
                "the tests it is for, and does not apply to the tests of this "
                f"one:\n{error}\nRebase onto the release that it was made for "
                "first, or take it out of the series. Nothing was changed."
            )
        return commit

    def _commit(self, patch):
        self.state.new.append(
            self.worktree.commit(self._parent, patch.message, patch.author)
        )

    def _stop(self, patch):
        conflicts = self.worktree.conflicts()
        hunks = self.worktree.git("diff", "--no-color").stdout.decode(
            errors="replace"
        )
        text = f"The patch {patch.name} conflicts in {', '.join(conflicts)}:\n"
        text += f"\n{hunks}\n"
        if self.check:
            raise Failure(f"{text}Nothing was changed.")
        self.state.stopped = True
        self.state.write(self.home / "state.json")
        where = os.path.relpath(self.worktree.path)
        raise Failure(
            f"{text}The files with conflict markers are in {where}/. Edit them "
            f"there (delete a file to drop it), and then `{COMMAND} "
            f"--continue`; or `{COMMAND} --abort`. Pin, series and keras/ are "
            "as they were."
        )

    def _take_resolution(self):
        conflicts = self.worktree.conflicts()
        unresolved = []
        for name in conflicts:
            path = self.worktree.path / name
            data = path.read_bytes() if path.exists() else b""
            if any(mark in data for mark in MARKERS):
                unresolved.append(name)
        if unresolved:
            raise Failure(
                f"Conflict markers are left in {', '.join(unresolved)}, in "
                f"{os.path.relpath(self.worktree.path)}/. Edit them and run "
                f"`{COMMAND} --continue` again; or `{COMMAND} --abort`."
            )
        self.worktree.git("add", "--all", "--force")
        self._commit(self.patches[len(self.state.new)])
        self.state.stopped = False
        self.state.write(self.home / "state.json")

    def _finished_patches(self):
        """The patches as they are on the new release, with a report."""
        result = []
        parents = [self.state.base, *self.state.new]
        names = set(self.repository.files(self.state.base))
        for patch, parent, commit in zip(self.patches, parents, self.state.new):
            if parent != commit:
                fresh = dataclasses.replace(
                    patch, diff=self.repository.diff(parent, commit)
                )
                result.append(fresh)
                self.say(compare(patch, fresh))
            elif series.is_out_of_reach(patch, names):
                result.append(patch)
                self.say(
                    f"  {patch.name}: kept as it is; the release does not "
                    "ship the tests it is for"
                )
            else:
                self.say(
                    f"  {patch.name}: dropped; the release holds all of it"
                )
        return result

    def _compare_requirements(self):
        """Says what pyproject.toml has to follow."""
        old, new = (
            upstream.requirements(self.repository, commit)
            for commit in (self.state.old_base, self.state.base)
        )
        if None not in (old, new) and old != new:
            gone = ", ".join(sorted(old - new)) or "none"
            come = ", ".join(sorted(new - old)) or "none"
            self.say(
                f"Upstream's requirements changed (gone: {gone}; new: {come}): "
                "see pyproject.toml and requirements.txt."
            )

    def _main_head(self):
        count = sum(not patch.tests for patch in self.patches)
        return self.state.new[count - 1] if count else self.state.base

    def _test(self):
        """Runs the backend on the new tree: a program of its own."""
        result = self.home / "result"
        shutil.rmtree(result, ignore_errors=True)
        install(self.repository, self._main_head(), result)
        copy_backend(self.project, result)
        smoke = self.project.package / "smoke.py"
        self.say("Importing the backend, and training a small model ...")
        with tempfile.TemporaryDirectory() as keras_home:
            done = subprocess.run(
                [sys.executable, "-P", str(smoke), str(result)],
                cwd=result,
                env={
                    **os.environ,
                    "PYTHONPATH": str(result),
                    "KERAS_BACKEND": "tinygrad",
                    "KERAS_HOME": keras_home,
                },
                capture_output=True,
                text=True,
            )
        if done.returncode == 0:
            self.say(done.stdout.strip())
            return
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        text = (
            f"The series replays, but the backend does not work on the result:"
            f"\n{tail}\n"
        )
        text += (
            "Install what is missing (`python -m pip install -r "
            "requirements.txt`), or mend keras/src/backend/tinygrad. "
        )
        if self.check:
            raise Failure(f"{text}Nothing was changed.")
        self.state.write(self.home / "state.json")
        raise Failure(
            f"{text}Then run `{COMMAND} --continue`; or `{COMMAND} --abort`. "
            "Pin, series and keras/ are as they were; the result is in "
            f"{os.path.relpath(result)}/."
        )

    def _write(self, result):
        """Makes pin, series and tree those of the new release."""
        expected = keras_files(self.repository, self._main_head())
        written = read_written(self.project)[1]
        edits = find_edits(self.project.root, expected, written)
        # Edits were refused at the start: these are files that were added.
        added = sorted(
            set(edits.changed) & expected.keys() - set(written or {})
        )
        if added:
            raise Failure(
                "The new release has files of its own where some were added "
                f"under keras/:\n{Edits([], added, [])}\nMove them away and "
                f"run `{COMMAND}` again; `{STATUS}` lists all. Nothing was "
                "changed."
            )
        root, head = self.project.root, self._main_head()
        with writing(self.repository, root):
            install(self.repository, head, root, written)
            write_written(self.project, head, expected)
            series.write_all(self.project, result)
            self.project.write_pin(self.state.pin)
            shutil.rmtree(self.home)
            self.repository.git("worktree", "prune")
            self.say(
                "keras/, the pin and the series are at "
                f"{self.state.pin.version} now. Run the tests, and commit "
                "keras_tinygrad_patches/."
            )


def compare(old, new):
    """Says how a patch changed."""
    if old.diff == new.diff:
        return f"  {old.name}: unchanged"
    if _without_places(old.diff) == _without_places(new.diff):
        return f"  {old.name}: the same change, at other lines"
    lines = difflib.unified_diff(
        old.diff.splitlines(),
        new.diff.splitlines(),
        "before",
        "after",
        n=1,
        lineterm="",
    )
    return "\n    ".join([f"  {old.name}: changed", *lines])


def _without_places(diff):
    return [line for line in diff.splitlines() if not line.startswith("@@ ")]
