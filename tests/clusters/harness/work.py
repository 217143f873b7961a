"""Starts workers (worker.py), with limits on their time."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from .commands import Failure
from .worker import BLOCK

WORKER = str(Path(__file__).with_name("worker.py"))


def limit_of(size):
    """Seconds that work on so many bytes may take: 1 MB/s, and a server's restart."""
    return 90 + size / 1e6


def start(commands, kind):
    """Starts a worker."""
    return commands.start([sys.executable, WORKER, kind], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(commands, process, limit, feed=None):
    """The worker's result."""
    out, errors = commands.finish(process, limit, feed)
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise Failure(f"a worker ended with status {process.returncode}: {' '.join(last)}")
    return json.loads(out.splitlines()[-1])


def line(job):
    """A job, as the worker reads it."""
    return (json.dumps(job) + "\n").encode()


def write(commands, path, size):
    """Makes a file of random bytes. Returns the digests of its blocks."""
    job = {"path": os.fsdecode(path), "size": size}
    return finish(commands, start(commands, "write"), limit_of(size), line(job))["digests"]


def compare(commands, pairs, size):
    """Compares pairs of paths. Returns for each pair a difference, or None."""
    job = {"pairs": [[os.fsdecode(a), os.fsdecode(b)] for a, b in pairs]}
    return finish(commands, start(commands, "compare"), limit_of(size), line(job))["results"]


def blocks_of(size):
    """The blocks of a file, as one range."""
    return [[0, -(-size // BLOCK)]]


class Readers:
    """Readers that begin at one time. `jobs` are those of worker.py."""

    def __init__(self, commands, jobs):
        self.commands = commands
        self.size = max(len(job["digests"]) for job in jobs) * BLOCK
        self.processes = []
        for job in jobs:
            process = start(commands, "read")
            self.processes.append(process)
            process.stdin.write(line(job))
            process.stdin.flush()
        for process in self.processes:
            self._await_ready(process)

    def _await_ready(self, process):
        ready, _, _ = select.select([process.stdout], [], [], 90)
        text = process.stdout.readline() if ready else b""
        if text.strip() != b"ready":
            self.commands.on_limit()
            errors = process.communicate(timeout=10)[1] if process.poll() is not None else b""
            last = errors.decode(errors="replace").strip().splitlines()[-1:]
            raise Failure(f"a reader cannot open its file: {' '.join(last) or 'it hangs'}")

    def begin(self):
        """Lets all readers begin."""
        for process in self.processes:
            process.stdin.write(b"go\n")
            process.stdin.flush()

    def results(self, extra=0):
        """Waits for all readers."""
        limit = limit_of(self.size) + extra
        return [finish(self.commands, process, limit) for process in self.processes]


def read(commands, jobs):
    """Reads, and returns the readers' results."""
    readers = Readers(commands, jobs)
    readers.begin()
    return readers.results()
