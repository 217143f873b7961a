#!/usr/bin/env python3
"""Readers that look whether anything fails, is wrong or stands still.

readers.py TREE MOUNT SECONDS: several processes read files of MOUNT, through the page
cache and past it, in large and small blocks, and compare each block with TREE. Prints
one line of JSON: reads, bytes, failed, wrong, and the longest read in milliseconds.
"""
import json
import mmap
import multiprocessing
import os
import random
import sys
import time


def read(tree, mount, name, block, direct, until, seed, queue):
    # Looked up and opened once: it must survive.
    expected = os.open(f"{tree}/{name}", os.O_RDONLY)
    file = os.open(f"{mount}/{name}", os.O_RDONLY | (os.O_DIRECT if direct else 0))
    size = os.fstat(expected).st_size
    chance = random.Random(seed)
    buffer = mmap.mmap(-1, block)
    reads = bytes_ = failed = wrong = 0
    longest, errors = 0.0, set()
    at = 0
    while time.monotonic() < until:
        if at + block > size:
            at = 0
            if not direct:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        if seed % 2:
            at = chance.randrange(size // block) * block
        begun = time.monotonic()
        try:
            n = os.preadv(file, [buffer], at)
            took = time.monotonic() - begun
            longest = max(longest, took)
            reads, bytes_ = reads + 1, bytes_ + n
            if buffer[:n] != os.pread(expected, block, at):
                wrong += 1
        except OSError as error:
            failed += 1
            errors.add(error.errno)
        at += block
    queue.put((reads, bytes_, failed, wrong, longest, sorted(errors)))


def look(tree, mount, until, queue):
    """Opens, lists and looks at attributes."""
    reads = failed = wrong = 0
    longest, errors = 0.0, set()
    names = sorted(os.listdir(tree))
    while time.monotonic() < until:
        begun = time.monotonic()
        try:
            if sorted(os.listdir(mount)) != names:
                wrong += 1
            for name in names:
                os.stat(f"{mount}/{name}")
            with open(f"{mount}/{names[0]}", "rb") as file:
                file.read(4096)
            reads += 1
            longest = max(longest, time.monotonic() - begun)
        except OSError as error:
            failed += 1
            errors.add(error.errno)
    queue.put((reads, 0, failed, wrong, longest, sorted(errors)))


def main():
    tree, mount, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    until = time.monotonic() + seconds
    queue = multiprocessing.Queue()
    names = sorted(os.listdir(tree))
    kinds = [(1 << 20, False), (1 << 20, True), (128 << 10, True), (4096, True), (4096, False)]
    readers = [
        multiprocessing.Process(
            target=read,
            args=(tree, mount, names[i % len(names)], *kind, until, i, queue),
        )
        for i, kind in enumerate(kinds)
    ]
    readers.append(multiprocessing.Process(target=look, args=(tree, mount, until, queue)))
    for reader in readers:
        reader.start()
    results = [queue.get() for _ in readers]
    for reader in readers:
        reader.join()
    reads, bytes_, failed, wrong = (sum(r[i] for r in results) for i in range(4))
    longest = max(r[4] for r in results) * 1000
    errnos = sorted({e for r in results for e in r[5]})
    print(
        json.dumps(
            dict(reads=reads, bytes=bytes_, failed=failed, wrong=wrong, errnos=errnos,
                 longest_ms=round(longest, 1))
        )
    )
    sys.exit(1 if failed or wrong else 0)


main()
