#!/usr/bin/env python3
"""What the daemon's memory grows by with what it knows and has open.

footprint.py PID DIRECTORY COUNT...: for each COUNT prints a line: the daemon's
resident KiB when so many of the directory's files have been looked up, how many
of them are then open, and its resident KiB when a page of each of those has been
read. No more are opened than a usual limit of descriptors allows.
"""
import os
import resource
import sys


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def main():
    pid, directory, counts = sys.argv[1], sys.argv[2], map(int, sys.argv[3:])
    most_open = 5000
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    files = []
    known = 0
    for count in counts:
        for i in range(known, count):
            os.stat(f"{directory}/{i:05}")
        known = count
        looked_up = resident(pid)
        for i in range(len(files), min(count, most_open)):
            files.append(os.open(f"{directory}/{i:05}", os.O_RDONLY))
            os.pread(files[-1], 4096, 0)
        print(count, looked_up, len(files), resident(pid), flush=True)


main()
