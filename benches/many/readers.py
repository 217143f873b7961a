#!/usr/bin/env python3
"""Reads many files at once and says how fairly that went.

readers.py [--limit MIB] READERS STAGGER_MS PATH

READERS threads read a file, or the files of a directory, from start to end by
1 MiB. With as many files as
readers each reads one; with one file all read that; with more files than
readers each keeps its share of them open and reads 1 MiB of each in turns.
No more than --limit is read of a file.
STAGGER_MS is how long after one another the readers start.

Prints: MiB/s of all, the fastest and the slowest reader's seconds, the longest
single read in ms. The content goes into one buffer and is not looked at.
"""
import mmap
import os
import sys
import threading
import time

MIB = 1 << 20


def main():
    limit = sys.maxsize
    if sys.argv[1] == "--limit":
        limit = int(sys.argv[2]) * MIB
        del sys.argv[1:3]
    readers, stagger, path = int(sys.argv[1]), float(sys.argv[2]) / 1000, sys.argv[3]
    if os.path.isfile(path):
        share = [[os.open(path, os.O_RDONLY)] for _ in range(readers)]
    else:
        names = sorted(os.listdir(path))
        files = [os.open(os.path.join(path, name), os.O_RDONLY) for name in names]
        share = [files[i::readers] for i in range(readers)]
    # Aligned, like most memory for large blocks: the kernel splits an unaligned direct read of 1
    # MiB.
    block = mmap.mmap(-1, MIB)
    results = [None] * readers
    start = threading.Barrier(readers + 1)

    def read(i):
        left = [[file, 0] for file in share[i]]
        total, longest = 0, 0.0
        start.wait()
        time.sleep(i * stagger)
        began = before = time.monotonic()
        while left:
            for entry in list(left):
                n = os.preadv(entry[0], [block], entry[1])
                now = time.monotonic()
                longest, before = max(longest, now - before), now
                entry[1] += n
                total += n
                if n == 0 or entry[1] >= limit:
                    left.remove(entry)
        results[i] = (began, before, total, longest)

    threading.stack_size(256 * 1024)
    threads = [threading.Thread(target=read, args=(i,)) for i in range(readers)]
    for thread in threads:
        thread.start()
    start.wait()
    for thread in threads:
        thread.join()
    took = max(end for _, end, _, _ in results) - min(begin for begin, _, _, _ in results)
    times = [end - begin for begin, end, _, _ in results]
    total = sum(n for _, _, n, _ in results)
    longest = max(result[3] for result in results)
    said = f"{total / MIB / took:.1f} {min(times):.3f} {max(times):.3f} {longest * 1000:.0f}\n"
    # In one write: several readers may share a pipe.
    os.write(sys.stdout.fileno(), said.encode())


main()
