"""Mounts of fanfs in the client's network."""

import json
import os
import subprocess
from pathlib import Path

from . import sandbox
from .commands import Failure, end_group, wait_until

START, STOP = 60, 40     # seconds


def type_at(point):
    """The type of the mount at a path, from the mount table; None if there is none."""
    kind = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words, _, rest = line.partition(" - ")
        if words.split()[4] == str(point):
            kind = rest.split()[0]
    return kind


class Mount:
    """A mount of fanfs, with its daemon in the foreground.

    `nodes` are those whose gateways are its replicas, `placement` is a section of its
    configuration, or empty; `read` has keys of the section [read].
    """

    def __init__(self, test, volume, nodes, placement="", read=""):
        self.test = test
        self.nodes = nodes
        name = f"m{test.next_number()}"
        self.point = test.room / "mnt" / name
        self.log = test.room / "log" / f"fanfs-{name}"
        self.config = test.room / "log" / f"{name}.toml"
        self.process = None
        parts = [f'[volume]\nname = "{name}"\nmode = "shared"\n']
        if read:
            parts.append(f"[read]\n{read}")
        parts.append(placement)
        parts += [test.cluster.replica(volume, node) for node in nodes]
        self.text = "\n".join(parts)
        self.config.write_text(self.text)

    def __enter__(self):
        self.point.mkdir(parents=True)
        words = self.test.cluster.lab.words(
            "exec", str(self.test.options.fanfs), "mount", str(self.config), str(self.point),
            "--foreground")
        with open(self.log, "wb") as log:
            self.process = self.test.commands.start(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(f"the mount of {self.nodes}", START, self.is_ready, every=0.1)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def last_log(self):
        """The end of the daemon's log."""
        return self.log.read_text(errors="replace")[-800:].strip()

    def is_ready(self):
        """Whether it is mounted and all its replicas are in service."""
        if self.process.poll() is not None:
            raise Failure(f"fanfs mount ended: {self.last_log()}")
        return type_at(self.point) == "fuse.fanfs" and self.healthy() == len(self.nodes)

    def fanfs(self, *words, limit=60):
        """Runs a command of fanfs about this mount, and returns its JSON."""
        out = self.test.cluster.lab.client(
            str(self.test.options.fanfs), *words, limit=limit)
        answer = json.loads(out)
        return answer[0] if isinstance(answer, list) else answer

    def status(self):
        """The daemon's status."""
        return self.fanfs("status", "--json", str(self.point), limit=30)

    def healthy(self):
        """The number of its replicas that are healthy."""
        try:
            return sum(replica["health"] == "healthy" for replica in self.status()["replicas"])
        except Failure:
            return 0

    def explain(self, file):
        """fanfs's view of a file's placement."""
        return self.fanfs("explain", "--json", self.path(file), limit=180)

    def path(self, file):
        """A file's path on this mount."""
        return os.path.join(os.fsencode(self.point), file.path)

    def stop(self):
        """Unmounts. The daemon of a hung mount is killed only after its connection is aborted."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP)
        except subprocess.TimeoutExpired:
            sandbox.abort_mounts(self.point)
            end_group(self.process)
        except BaseException:
            sandbox.abort_mounts(self.point)
            raise
        finally:
            if self.process.poll() is not None and self.process in self.test.commands.live:
                self.test.commands.live.remove(self.process)
        if type_at(self.point):
            self.test.commands.run(["umount", "-l", str(self.point)], limit=20, check=False)
        self.process = None
