#!/usr/bin/env python3
"""Reads FILE once in 1 MiB blocks while a replica fails and heals, and says how.

reader.py FILE TURNS SUM TWO THREE
    writes "on" to TURNS (a fifo) after two seconds and "off" after six, when
    the replica is to fail and to heal; SUM is the file's checksum, TWO and THREE
    are MiB/s that two and three replicas deliver. Prints a row of a table.
reader.py --header    prints the table's head
reader.py --sum FILE  prints the file's checksum
reader.py --hedged    reads `fanfs status --json`; prints the part of what was
                      delivered that was asked for twice
"""
import json
import os
import sys
import time
import zlib

MIB = 1 << 20
ON, OFF = 2.0, 6.0
WINDOW = 0.5
COLUMNS = [
    "failed", "wrong", "p99 before, ms", "longest, ms", "of two, from 0.5 s on",
    "p99 from 2 s on, ms", "at 0.95 of three after", "of three then", "hedged",
]


def blocks(path):
    """Yields each block's begin, end, and bytes; its number of failures at last."""
    file = os.open(path, os.O_RDONLY)
    block = bytearray(MIB)
    failed = 0
    while True:
        before = time.monotonic()
        try:
            n = os.readv(file, [block])
        except OSError as error:
            print(error, file=sys.stderr)
            failed += 1
            if failed > 100:
                return
            continue
        yield before, time.monotonic(), memoryview(block)[:n], failed
        if n == 0:
            return


def checksum(path):
    crc = 0
    for _, _, data, _ in blocks(path):
        crc = zlib.crc32(data, crc)
    return crc


def p99(reads):
    times = sorted(end - begin for begin, end, _ in reads)
    return 1000 * times[int(0.99 * (len(times) - 1))]


def rate(reads, begin, end):
    return sum(n for _, at, n in reads if begin < at <= end) / MIB / (end - begin)


def main():
    path, turns, right, two, three = sys.argv[1:]
    two, three = float(two), float(three)
    turns = open(turns, "w")
    waiting = [(ON, "on"), (OFF, "off")]
    reads, crc, failed = [], 0, 0
    start = time.monotonic()
    for begin, end, data, failed in blocks(path):
        crc = zlib.crc32(data, crc)
        begin, end = begin - start, end - start
        reads.append((begin, end, len(data)))
        if waiting and end >= waiting[0][0]:
            at, turn = waiting.pop(0)
            print(turn, file=turns, flush=True)
    turns.close()
    last = reads[-1][1]
    assert last > OFF + 2, "the file is too short"
    before = [read for read in reads if read[1] <= ON]
    # A read may begin while all is well and be the one that waits.
    after = [read for read in reads if read[1] > ON]
    bad = [read for read in reads if ON + 2 <= read[0] and read[1] <= OFF]
    longest = 1000 * max(end - begin for begin, end, _ in after)
    back = None
    at = OFF
    while at + WINDOW <= last:
        if rate(reads, at, at + WINDOW) >= 0.95 * three:
            back = at + WINDOW
            break
        at += WINDOW / 10
    then = f"{rate(reads, back, last) / three:.3f}" if back and back < last - 1 else "-"
    print("|", " | ".join([
        str(failed), "0" if crc == int(right) else "WRONG", f"{p99(before):.0f}", f"{longest:.0f}",
        f"{rate(reads, ON + 0.5, OFF) / two:.3f}", f"{p99(bad):.0f}",
        f"{back - OFF:.2f} s" if back else "never", then,
    ]), "|", end="")


if sys.argv[1] == "--header":
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
elif sys.argv[1] == "--sum":
    print(checksum(sys.argv[2]))
elif sys.argv[1] == "--hedged":
    counters = json.load(sys.stdin)["counters"]
    print(f"{counters['hedge_bytes'] / counters['bytes_delivered']:.3%}")
else:
    main()
