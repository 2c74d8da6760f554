"""The scratch git repository in which upstream and the patches are commits."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

from keras_tinygrad_patches.project import Failure
from keras_tinygrad_patches.signals import deferred

AUTHOR = "keras-tinygrad-fork <fork@keras-tinygrad.invalid>"

# Nothing of the user's git set-up may change what a patch means.
SETTINGS = (
    *("-c", "core.autocrlf=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.quotePath=false"),
    *("-c", "gc.auto=0"),
    *("-c", "merge.conflictStyle=diff3"),
    # An upstream checkout may belong to somebody else.
    *("-c", "safe.directory=*"),
)


def environment(author=AUTHOR, **extra):
    """Environment variables for git: the caller's, without git's own."""
    name, _, email = author.rstrip(">").rpartition(" <")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env.update(
        LC_ALL="C",
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_AUTHOR_NAME=name,
        GIT_AUTHOR_EMAIL=email,
        GIT_AUTHOR_DATE="@0 +0000",
        GIT_COMMITTER_NAME=name,
        GIT_COMMITTER_EMAIL=email,
        GIT_COMMITTER_DATE="@0 +0000",
        **extra,
    )
    return env


def run_git(*arguments, cwd=None, data=None, env=None, check=True):
    """Runs git and returns the finished process, its output as bytes.

    Args:
        *arguments: Strings, what follows `git`.
        cwd: Directory to run in.
        data: Bytes for its standard input.
        env: Environment; `environment()` by default.
        check: Whether an error of git's is a `Failure`.

    Raises:
        Failure: If git is not installed, or fails where `check` is set.
    """
    try:
        # One that is broken off leaves locks and halves of files behind.
        with deferred():
            done = subprocess.run(
                ["git", *SETTINGS, *arguments],
                cwd=cwd,
                input=data if data is not None else b"",
                env=env or environment(),
                capture_output=True,
            )
    except FileNotFoundError:
        raise Failure(
            "git is needed and was not found. Install git, and run this again."
        ) from None
    if check and done.returncode:
        raise Failure(
            f"git {arguments[0]} failed: "
            f"{done.stderr.decode(errors='replace').strip()}"
        )
    return done


class Repository:
    """The scratch repository: bare, deterministic, and safe to delete.

    Args:
        path: `pathlib.Path` of its directory; made when it does not exist.
    """

    def __init__(self, path):
        self.path = path
        if not (path / "HEAD").exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            run_git("init", "--quiet", "--bare", str(path))

    def git(self, *arguments, data=None, env=None, check=True):
        return run_git(
            f"--git-dir={self.path}",
            *arguments,
            data=data,
            env=env,
            check=check,
        )

    def text(self, *arguments, **kwargs):
        return self.git(*arguments, **kwargs).stdout.decode().strip()

    def find(self, name):
        """The commit that a name stands for, or `None`."""
        done = self.git(
            "rev-parse",
            "--verify",
            "--quiet",
            f"{name}^{{commit}}",
            check=False,
        )
        return done.stdout.decode().strip() or None

    def keep(self, ref, commit):
        """Names a commit, which another process may just have named too."""
        self.git("update-ref", ref, commit, check=False)
        if self.find(ref) != commit:
            raise Failure(
                f"git could not write {ref} to {self.path}. It can be deleted: "
                "it is made anew."
            )

    def tree(self, commit):
        return self.text("rev-parse", f"{commit}^{{tree}}")

    def import_files(self, files, message, parent=None):
        """Makes a commit of whole files.

        Args:
            files: Dict of path to contents (bytes).
            message: String.
            parent: Commit whose files these come on top of; contents of
                `None` then delete a file.

        Returns:
            The commit's id.
        """
        ref = f"refs/import/{os.getpid()}"
        name, _, email = AUTHOR.rstrip(">").rpartition(" <")
        text = message.encode()
        stream = [
            f"commit {ref}\ncommitter {name} <{email}> 0 +0000\n".encode(),
            b"data %d\n%s\n" % (len(text), text),
        ]
        if parent:
            stream.append(f"from {parent}\n".encode())
        for path, contents in sorted(files.items()):
            if contents is None:
                stream.append(f"D {path}\n".encode())
                continue
            stream.append(f"M 100644 inline {path}\n".encode())
            stream.append(b"data %d\n%s\n" % (len(contents), contents))
        stream.append(b"done\n")
        self.git(
            "fast-import", "--quiet", "--done", "--force", data=b"".join(stream)
        )
        commit = self.find(ref)
        self.git("update-ref", "-d", ref)
        return commit

    def commit_tree(self, tree, parent, message, author):
        return self.text(
            "commit-tree",
            tree,
            "-p",
            parent,
            data=message.encode(),
            env=environment(author),
        )

    def files(self, commit):
        """Dict of path to blob id, for all files of a commit."""
        listing = self.git("ls-tree", "-r", "-z", commit).stdout
        files = {}
        for entry in listing.split(b"\0")[:-1]:
            head, _, path = entry.partition(b"\t")
            files[path.decode()] = head.split()[2].decode()
        return files

    def read(self, blobs):
        """Dict of blob id to contents."""
        blobs = list(dict.fromkeys(blobs))
        out = self.git(
            "cat-file",
            "--batch",
            data="".join(f"{b}\n" for b in blobs).encode(),
        ).stdout
        contents, position = {}, 0
        for blob in blobs:
            end = out.index(b"\n", position)
            size = int(out[position:end].split()[2])
            contents[blob] = out[end + 1 : end + 1 + size]
            position = end + size + 2
        return contents

    def diff(self, old, new):
        """The difference of two commits as a patch holds it.

        Blob ids and the names of enclosing functions are left out: they are
        upstream's, and would change at every rebase.
        """
        text = self.git(
            "diff-tree",
            "-p",
            "-U1",
            "--no-renames",
            "--no-color",
            "--no-ext-diff",
            old,
            new,
        ).stdout.decode()
        return tidy_diff(text)

    @contextlib.contextmanager
    def index(self, commit):
        """Git, with a temporary index that holds the files of a commit."""
        with tempfile.TemporaryDirectory() as directory:
            env = environment(
                GIT_INDEX_FILE=str(pathlib.Path(directory) / "index")
            )
            self.git("read-tree", commit, env=env)
            yield lambda *a, **k: self.git(*a, env=env, **k)

    @contextlib.contextmanager
    def worktree(self, commit):
        """A `Worktree` of a commit that is gone at the end."""
        with tempfile.TemporaryDirectory() as directory:
            worktree = Worktree.add(
                self, pathlib.Path(directory) / "tree", commit
            )
            try:
                yield worktree
            finally:
                worktree.remove()


class Worktree:
    """Files of a commit in a directory, where commits are replayed.

    Args:
        repository: The `Repository`.
        path: `pathlib.Path` of the directory.
    """

    def __init__(self, repository, path):
        self.repository = repository
        self.path = path

    @classmethod
    def add(cls, repository, path, commit):
        repository.git("worktree", "prune")
        repository.git(
            "worktree", "add", "--quiet", "--force", "--detach", path, commit
        )
        return cls(repository, path)

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)
        self.repository.git("worktree", "prune")

    def git(self, *arguments, check=True, env=None):
        return run_git(*arguments, cwd=self.path, check=check, env=env)

    def move(self, commit):
        self.git("reset", "--quiet", "--hard", commit)

    def pick(self, commit):
        """Merges what a commit changed, and returns the files in conflict."""
        done = self.git("cherry-pick", "--no-commit", commit, check=False)
        conflicts = self.conflicts()
        if done.returncode and not conflicts:
            raise Failure(
                "git cherry-pick failed: "
                f"{done.stderr.decode(errors='replace').strip()}"
            )
        return conflicts

    def conflicts(self):
        names = self.git("diff", "--name-only", "--diff-filter=U", "-z").stdout
        return names.decode().split("\0")[:-1]

    def commit(self, parent, message, author):
        """Commits the index; returns `parent` itself if nothing changed."""
        tree = self.git("write-tree").stdout.decode().strip()
        if tree == self.repository.tree(parent):
            self.move(parent)
            return parent
        commit = self.repository.commit_tree(tree, parent, message, author)
        self.move(commit)
        return commit


def tidy_diff(text):
    lines = []
    for line in text.split("\n"):
        if line.startswith("index "):
            continue
        if line.startswith("@@ "):
            line = line[: line.index("@@", 3) + 2]
        lines.append(line)
    return "\n".join(lines)
