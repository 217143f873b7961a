"""An automount, as systemd or automount(8) would make it: mounts autofs, and at the first look
runs a command that is to mount there. Usage: automount.py DIR SECONDS COMMAND...

Prints "waits" when a look would be noticed, then "done" or how the command failed. What looks
has to be in another process group. Takes autofs away when standard input ends."""

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys

READY, FAIL, CATATONIC = 0x9360, 0x9361, 0x9362  # of linux/auto_fs.h
PACKET = struct.Struct("@iiIIQIIIII256s")  # struct autofs_v5_packet

place, seconds, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
libc = ctypes.CDLL(None, use_errno=True)
ours, theirs = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
os.setpgid(0, 0)
options = f"fd={theirs},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
if libc.mount(b"test", place.encode(), b"autofs", 0, options.encode()) != 0:
    sys.exit(f"autofs: {os.strerror(ctypes.get_errno())}")
root = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
os.close(theirs)
print("waits", flush=True)
try:
    if ours in select.select([ours, sys.stdin], [], [], 30)[0]:
        token = PACKET.unpack(os.read(ours, PACKET.size)[: PACKET.size])[2]
        try:
            status = subprocess.run(command, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            status = "it takes too long"
        fcntl.ioctl(root, FAIL if status else READY, token)
        print(status or "done", flush=True)
        sys.stdin.read()
finally:
    fcntl.ioctl(root, CATATONIC, 0)
    os.close(root)
    while libc.umount2(place.encode(), 2) == 0:
        pass
