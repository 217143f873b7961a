#!/usr/bin/env python3
"""Reads FILE from start to end by 1 MiB and notes when each read came back.

trace.py FILE AT_MIB SUM_THEN COMMAND...: after AT_MIB, starts COMMAND, which does
something to a replica; prints, of what came after, the rate, its ratio to
SUM_THEN (MiB/s that the replicas deliver then), the longest read, and when the
rate over a quarter second was first at 0.93 of SUM_THEN again.
"""
import os
import subprocess
import sys
import time

MIB = 1 << 20
QUARTER = 0.25


def main():
    path, at, then, command = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    file = os.open(path, os.O_RDONLY)
    block = bytearray(MIB)
    size, changed, changing = 0, None, None
    reads = []
    while True:
        before = time.monotonic()
        n = os.readv(file, [block])
        now = time.monotonic()
        if n == 0:
            break
        size += n
        if changed is not None:
            reads.append((now - changed, now - before, n))
        elif size >= at * MIB:
            changed = time.monotonic()
            changing = subprocess.Popen(command)
    if changing:
        changing.wait()
    end = reads[-1][0]
    rate = sum(n for _, _, n in reads) / MIB / end
    longest = max(took for _, took, _ in reads)
    back, start = None, 0.0
    while start + QUARTER <= end:
        got = sum(n for when, _, n in reads if start < when <= start + QUARTER) / MIB / QUARTER
        if got >= 0.93 * then:
            back = start + QUARTER
            break
        start += QUARTER / 5
    said = f"{back:.2f} s" if back else "never"
    print(f"{rate:.1f} {rate / then:.3f} {longest * 1000:.0f} {said}")


main()
