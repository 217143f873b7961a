"""The process that touches files on a mount, because such a process may hang.

    worker.py write        makes a file of random bytes
    worker.py read         reads parts of a file with O_DIRECT, and checks each block
    worker.py compare      compares pairs of files, byte for byte

A job is one line of JSON on standard input, the result one line on standard output. `read` first
opens its file, prints `ready` and waits for a second line, so that readers begin at one time. Paths
that are not UTF-8 have Python's surrogates. Times are those of CLOCK_MONOTONIC.
"""

import hashlib
import json
import mmap
import os
import sys
import threading
import time

BLOCK = 1 << 20


def digest(block):
    """Identifies the content of a block."""
    return hashlib.blake2b(block, digest_size=16).hexdigest()


def write(job):
    """Writes `size` random bytes, and returns the digests of its blocks."""
    digests = []
    with open(job["path"], "wb") as file:
        left = job["size"]
        while left:
            block = os.urandom(min(BLOCK, left))
            digests.append(digest(block))
            file.write(block)
            left -= len(block)
        file.flush()
        os.fsync(file.fileno())
    return {"digests": digests}


class Reader:
    """Reads blocks, and notes errors, wrong blocks and the longest read."""

    def __init__(self, job):
        self.job = job
        self.file = os.open(job["path"], os.O_RDONLY | os.O_DIRECT)
        self.lock = threading.Lock()
        self.blocks = iter(())
        self.totals = {"bytes": 0, "reads": 0, "wrong": 0, "failed": 0, "longest": 0.0,
                       "longest_at": 0.0, "passes": 0, "errors": []}

    def note(self, count, seconds, error=None, wrong=False):
        """Adds one read."""
        with self.lock:
            self.totals["bytes"] += count
            self.totals["reads"] += 1
            self.totals["wrong"] += wrong
            if seconds > self.totals["longest"]:
                self.totals["longest"] = seconds
                self.totals["longest_at"] = time.monotonic()
            if error:
                self.totals["failed"] += 1
                self.totals["errors"] = (self.totals["errors"] + [error])[:5]

    def read_blocks(self):
        """Takes blocks until there is none."""
        buffer = mmap.mmap(-1, BLOCK)
        while True:
            with self.lock:
                number = next(self.blocks, None)
            if number is None:
                return
            begun = time.monotonic()
            try:
                count = os.preadv(self.file, [buffer], number * BLOCK)
            except OSError as error:
                self.note(0, time.monotonic() - begun, f"block {number}: {error}")
                continue
            seconds = time.monotonic() - begun
            right = digest(buffer[:count]) == self.job["digests"][number]
            self.note(count, seconds, wrong=not right)

    def read_pass(self):
        """Reads all blocks once."""
        self.blocks = iter([block for first, end in self.job["blocks"]
                            for block in range(first, end)])
        threads = [threading.Thread(target=self.read_blocks)
                   for _ in range(self.job.get("depth", 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.totals["passes"] += 1

    def run(self):
        """Reads once, or until the file `until` exists."""
        begun = time.monotonic()
        while True:
            self.read_pass()
            if "until" not in self.job or os.path.exists(self.job["until"]):
                break
        return {"begun": begun, "ended": time.monotonic(), **self.totals}


def read(job):
    """Reads parts of a file."""
    reader = Reader(job)
    print("ready", flush=True)
    sys.stdin.readline()
    return reader.run()


def first_difference(ours, theirs):
    """Says where two files differ; None if they do not."""
    with open(ours, "rb") as a, open(theirs, "rb") as b:
        at = 0
        while True:
            one, other = a.read(BLOCK), b.read(BLOCK)
            if one != other:
                same = next((i for i, (x, y) in enumerate(zip(one, other)) if x != y),
                            min(len(one), len(other)))
                return f"differs at byte {at + same}"
            if not one:
                return None
            at += len(one)


def compare(job):
    """Compares pairs of files."""
    results = []
    for ours, theirs in job["pairs"]:
        try:
            results.append(first_difference(ours, theirs))
        except OSError as error:
            results.append(str(error))
    return {"results": results}


if __name__ == "__main__":
    work = {"write": write, "read": read, "compare": compare}[sys.argv[1]]
    print(json.dumps(work(json.loads(sys.stdin.readline()))), flush=True)
