"""One process that locks files as it is told: a line of JSON in, a line out.

    ["open", NAME, PATH, "r" or "rw"]      ["close", NAME]
    ["lock", NAME, CALL, TYPE, START, LENGTH]
    ["flock", NAME, FLAG, ...]             ["alarm", SECONDS]

"alarm" is for the order after it, which a signal is to interrupt so much later.
CALL is the name of an fcntl command, such as F_SETLKW; TYPE one of F_RDLCK,
F_WRLCK, F_UNLCK. The answer is "ok", what F_GETLK found, or an errno's name.
"""

import errno
import fcntl
import json
import os
import signal
import struct
import sys

# struct flock, where off_t has 64 bits.
FLOCK = "hhqqi4x"
OFD = {"F_OFD_GETLK": 36, "F_OFD_SETLK": 37, "F_OFD_SETLKW": 38}
TYPES = {fcntl.F_RDLCK: "F_RDLCK", fcntl.F_WRLCK: "F_WRLCK", fcntl.F_UNLCK: "F_UNLCK"}
files = {}
# In how many seconds the next call is to be interrupted.
alarm = 0


class Interrupted(Exception):
    pass


def interrupted(*_):
    raise Interrupted


def lock(name, call, kind, start, length):
    number = OFD.get(call) or getattr(fcntl, call)
    asked = struct.pack(FLOCK, getattr(fcntl, kind), os.SEEK_SET, start, length, 0)
    got = struct.unpack(FLOCK, fcntl.fcntl(files[name], number, asked))
    if not call.endswith("GETLK"):
        return "ok"
    kind = TYPES[got[0]]
    return kind if kind == "F_UNLCK" else f"{kind} {got[2]} {got[3]}"


def carry_out(what, *args):
    global alarm
    if what == "open":
        name, path, how = args
        files[name] = os.open(path, os.O_RDWR if how == "rw" else os.O_RDONLY)
    elif what == "close":
        os.close(files.pop(args[0]))
    elif what == "alarm":
        alarm = args[0]
        return "ok"
    # Only now, so that it cannot arrive before its call.
    signal.setitimer(signal.ITIMER_REAL, alarm)
    alarm = 0
    if what == "flock":
        name, *flags = args
        fcntl.flock(files[name], sum(getattr(fcntl, flag) for flag in flags))
    elif what == "lock":
        return lock(*args)
    return "ok"


signal.signal(signal.SIGALRM, interrupted)
for line in sys.stdin:
    try:
        answer = carry_out(*json.loads(line))
    except Interrupted:
        answer = "EINTR"
    except OSError as error:
        answer = errno.errorcode[error.errno]
    print(json.dumps(answer), flush=True)
