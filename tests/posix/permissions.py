#!/usr/bin/env python3
"""Does what users may and may not do in a directory, and writes down what came of it.

    permissions.py DIR [--build DIR2] [--every N] > cases.jsonl

Three users go through a matrix of objects (owners, groups, modes) and operations
in DIR. Each case has a directory of its own with new names in it, so nothing that
anybody has cached of an earlier case can answer for it. One JSON line a case:

    case    user, object, operation; the same in every run
    result  "ok" with what was got, or the errno
    state   the case's directory afterwards, as root sees it in DIR2
    seen    the same names as the user sees them right afterwards in DIR

Two directories that follow the same rules give the same lines. DIR2 is the same
directory where root may do everything, if that is not so in DIR (an NFS export
with root_squash). Of the whole matrix, --every N takes about one case in N; which
ones depends on their names alone. Needs root.
"""

import argparse
import ctypes
import errno
import json
import os
import shutil
import stat
import sys
import time
import zlib

# Each user's group and supplementary groups.
USERS = {0: (0, []), 1001: (1001, [2000]), 1002: (1002, [])}
# A group of the user (besides the primary one, if the user has several), a group that the user is
# not in, and another user.
IN = {0: 2000, 1001: 2000, 1002: 1002}
OUT = {0: 1002, 1001: 1002, 1002: 2000}
OTHER = {0: 1001, 1001: 1002, 1002: 1001}

OWNERS = [(0, 0), (0, 2000), (1001, 1001), (1001, 2000), (1001, 1002), (1002, 1002), (1002, 2000)]
FILE_MODES = [
    0o0000, 0o0400, 0o0200, 0o0100, 0o0600, 0o0640, 0o0604, 0o0460, 0o0060, 0o0006, 0o0660,
    0o0666, 0o0755, 0o0750, 0o0705, 0o0777, 0o1777, 0o2644, 0o2755, 0o2775, 0o2777, 0o4644,
    0o4755, 0o4777, 0o6755, 0o6777,
]
DIR_MODES = [
    0o0000, 0o0400, 0o0100, 0o0200, 0o0300, 0o0500, 0o0600, 0o0700, 0o0711, 0o0744, 0o0733,
    0o0755, 0o0750, 0o0770, 0o0775, 0o0777, 0o1777, 0o1770, 0o2755, 0o2775, 0o2777, 0o3777,
]
PARENTS = [(0, 0, 0o0777), (0, 0, 0o0755), (0, 0, 0o1777), (1001, 1001, 0o1777),
           (1002, 2000, 0o2775), (1002, 2000, 0o3777), (1001, 2000, 0o0570)]

LONG_AGO, GIVEN = 500_000_000, 1_000_000_000
TEXT = b"ten bytes\n"
C = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, NOREPLACE, EXCHANGE = -100, 1, 2
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanos", ctypes.c_long)]


def call(function, *args):
    """A call of the C library that Python has no name for."""
    if function(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def rename(old, new, flags):
    call(C.renameat2, AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags)


def times(path, atime, mtime):
    both = (Timespec * 2)(Timespec(0, atime), Timespec(0, mtime))
    call(C.utimensat, AT_FDCWD, os.fsencode(path), both, 0)


def fallocate(fd):
    call(C.fallocate, fd, 0, ctypes.c_long(0), ctypes.c_long(5000))


def attempt(function, *args):
    """What came of it, in a word."""
    try:
        got = function(*args)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "ok" if got is None else f"ok {got}"


def using(path, flags, *steps, mode=0o666):
    """Opens, takes the steps with the descriptor, and closes. A step that fails
    does not keep the next one from being tried."""
    fd = os.open(path, flags, mode)
    try:
        done = [attempt(step, fd) for step in steps]
    finally:
        os.close(fd)
    return ", ".join(done) or None


def read(fd):
    return os.pread(fd, 100, 0).decode()


def write(fd):
    return os.write(fd, b"xyz")


def masked(mask, function, *args, **more):
    before = os.umask(mask)
    try:
        return function(*args, **more)
    finally:
        os.umask(before)


def execute(path):
    """A text without #! is no program (ENOEXEC) for those who may execute it."""
    os.execv(path, [path])


def own(path, uid, gid):
    os.chown(path, uid, gid, follow_symlinks=False)


R, W, RW, CREATE = os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_CREAT
EXCL, TRUNC, APPEND = os.O_EXCL, os.O_TRUNC, os.O_APPEND
ATTR = "user.fanfs"


def attributes(path):
    """Operations on an object itself, whatever it is."""
    o = path
    return {
        "stat": (lambda me: oct(os.stat(o).st_mode), ""),
        "access F": (lambda me: os.access(o, os.F_OK), ""),
        "access R": (lambda me: os.access(o, os.R_OK), ""),
        "access W": (lambda me: os.access(o, os.W_OK), ""),
        "access X": (lambda me: os.access(o, os.X_OK), ""),
        "access RWX, effective": (lambda me: os.access(o, 7, effective_ids=True), ""),
        "chmod 0": (lambda me: os.chmod(o, 0), o),
        "chmod 644": (lambda me: os.chmod(o, 0o644), o),
        "chmod 1777": (lambda me: os.chmod(o, 0o1777), o),
        "chmod 2755": (lambda me: os.chmod(o, 0o2755), o),
        "chmod 6711": (lambda me: os.chmod(o, 0o6711), o),
        "chown nothing": (lambda me: own(o, -1, -1), o),
        "chown to self": (lambda me: own(o, me, -1), o),
        "chown to self and own group": (lambda me: own(o, me, USERS[me][0]), o),
        "chown to a group of mine": (lambda me: own(o, -1, IN[me]), o),
        "chown to a group not mine": (lambda me: own(o, -1, OUT[me]), o),
        "chown to another user": (lambda me: own(o, OTHER[me], -1), o),
        "utime now": (lambda me: os.utime(o), o),
        "utime given": (lambda me: os.utime(o, (GIVEN, GIVEN)), o),
        "utime, only mtime, now": (lambda me: times(o, UTIME_OMIT, UTIME_NOW), o),
        "setxattr": (lambda me: os.setxattr(o, ATTR, b"new"), ""),
        "setxattr, replace": (lambda me: os.setxattr(o, ATTR, b"new", os.XATTR_REPLACE), "a"),
        "setxattr, create": (lambda me: os.setxattr(o, ATTR, b"new", os.XATTR_CREATE), "a"),
        "getxattr": (lambda me: os.getxattr(o, ATTR).decode(), "a"),
        "getxattr of nothing": (lambda me: os.getxattr(o, ATTR).decode(), ""),
        "listxattr": (lambda me: [a for a in os.listxattr(o) if a.startswith("user.")], "a"),
        "removexattr": (lambda me: os.removexattr(o, ATTR), "a"),
        "rename": (lambda me: os.rename(o, "new"), "o new"),
        "rename over another's": (lambda me: os.rename(o, "x"), "o x"),
        "rename, no replace": (lambda me: rename(o, "x", NOREPLACE), "o x"),
        "exchange": (lambda me: rename(o, "x", EXCHANGE), "o x"),
        "link": (lambda me: os.link(o, "new"), "o new"),
        "unlink": (lambda me: os.unlink(o), "o"),
        "rmdir": (lambda me: os.rmdir(o), "o"),
        "readlink": (lambda me: os.readlink(o), ""),
        "chdir": (lambda me: os.chdir(o), ""),
        "readdir": (lambda me: ",".join(sorted(os.listdir(o))), "f d"),
        "exec": (lambda me: execute("./" + o), ""),
    }


def on_files():
    o = "o"
    return attributes(o) | {
        "open r": (lambda me: using(o, R, read), ""),
        "open r, no atime": (lambda me: using(o, R | os.O_NOATIME, read), ""),
        "open as a directory": (lambda me: using(o, R | os.O_DIRECTORY), ""),
        "open w": (lambda me: using(o, W), o),
        "open w, read": (lambda me: using(o, W, read), o),
        "open r, write": (lambda me: using(o, R, write), o),
        "open w, write": (lambda me: using(o, W, write), o),
        "open w, write nothing": (lambda me: using(o, W, lambda fd: os.write(fd, b"")), o),
        "open rw, read, write, read": (lambda me: using(o, RW, read, write, read), o),
        "open w, truncating": (lambda me: using(o, W | TRUNC), o),
        "open r, truncating": (lambda me: using(o, R | TRUNC, read), o),
        "open rw, truncating, write": (lambda me: using(o, RW | TRUNC, write, read), o),
        "append": (lambda me: using(o, W | APPEND, write, os.fsync), o),
        "open r, creating": (lambda me: using(o, R | CREATE, read), o),
        "open w, creating": (lambda me: using(o, W | CREATE, write), o),
        "open w, creating, exclusive": (lambda me: using(o, W | CREATE | EXCL), o),
        "truncate to less": (lambda me: os.truncate(o, 3), o),
        "truncate to the same": (lambda me: os.truncate(o, len(TEXT)), o),
        "truncate to more": (lambda me: os.truncate(o, 5000), o),
        "ftruncate, open r": (lambda me: using(o, R, lambda fd: os.ftruncate(fd, 3)), o),
        "ftruncate, open w": (lambda me: using(o, W, lambda fd: os.ftruncate(fd, 3)), o),
        "fallocate": (lambda me: using(o, W, fallocate), o),
        "fchmod": (lambda me: using(o, R, lambda fd: os.fchmod(fd, 0o2640)), o),
        "fchown": (lambda me: using(o, R, lambda fd: os.fchown(fd, -1, IN[me])), o),
        "open r, chmod 0, read": (
            lambda me: using(o, R, lambda fd: os.chmod(o, 0), read), o),
        "open rw, chmod 0, use": (
            lambda me: using(o, RW, lambda fd: os.chmod(o, 0), write, read,
                             lambda fd: os.ftruncate(fd, 5), os.fsync), o),
        "open rw, unlink, use": (
            lambda me: using(o, RW, lambda fd: os.unlink(o), write, read,
                             lambda fd: os.ftruncate(fd, 5), lambda fd: os.fchmod(fd, 0),
                             lambda fd: oct(os.fstat(fd).st_mode),
                             lambda fd: os.fstat(fd).st_size), o),
        "open rw, rename, use": (
            lambda me: using(o, RW, lambda fd: os.rename(o, "new"), write, read,
                             lambda fd: os.ftruncate(fd, 5)), "o new"),
        "open r, replace, read": (
            lambda me: using(o, R, lambda fd: os.rename("x", o), read), "o x"),
    }


def on_directories():
    new = "o/new"
    created = W | CREATE | EXCL
    return attributes("o") | {
        "stat in it": (lambda me: oct(os.stat("o/f").st_mode), "f"),
        "stat of nothing in it": (lambda me: oct(os.stat("o/g").st_mode), ""),
        "read in it": (lambda me: using("o/f", R, read), "f"),
        "write in it": (lambda me: using("o/f", W, write), "f"),
        "create, existing": (lambda me: using("o/f", RW | CREATE, write), "f"),
        "open as a directory": (lambda me: using("o", R | os.O_DIRECTORY), ""),
        "open w": (lambda me: using("o", W), ""),
        "create": (lambda me: using(new, created, write), new),
        "create 0400 and write": (
            lambda me: using(new, RW | CREATE | EXCL, write, read,
                             lambda fd: os.ftruncate(fd, 2), mode=0o400), new),
        "create 0000 and write": (lambda me: using(new, created, write, mode=0), new),
        "create 0666, umask 0": (lambda me: masked(0, using, new, created), new),
        "create 0666, umask 077": (lambda me: masked(0o77, using, new, created), new),
        "create 2775, umask 0": (lambda me: masked(0, using, new, created, mode=0o2775), new),
        "create 6777, umask 027": (lambda me: masked(0o27, using, new, created, mode=0o6777), new),
        "mkdir": (lambda me: os.mkdir(new), new),
        "mkdir 1777, umask 0": (lambda me: masked(0, os.mkdir, new, 0o1777), new),
        "mkdir 2777, umask 027": (lambda me: masked(0o27, os.mkdir, new, 0o2777), new),
        "mkdir and create in it": (
            lambda me: (os.mkdir(new), using(new + "/deep", created, write))[1], new + "/deep"),
        "symlink": (lambda me: os.symlink("f", new), new),
        "link into it": (lambda me: os.link("x", new), "x " + new),
        "link out of it": (lambda me: os.link("o/f", "new"), "f new"),
        "mknod, fifo": (lambda me: os.mkfifo(new, 0o664), new),
        "mknod, socket": (lambda me: os.mknod(new, stat.S_IFSOCK | 0o666), new),
        "mknod, file": (lambda me: os.mknod(new, stat.S_IFREG | 0o2775), new),
        "mknod, device": (
            lambda me: os.mknod(new, stat.S_IFCHR | 0o600, os.makedev(1, 3)), new),
        "unlink in it": (lambda me: os.unlink("o/f"), "f"),
        "unlink nothing in it": (lambda me: os.unlink("o/f"), ""),
        "unlink a directory in it": (lambda me: os.unlink("o/d"), "d"),
        "rmdir in it": (lambda me: os.rmdir("o/d"), "d"),
        "rename within": (lambda me: os.rename("o/f", new), "f " + new),
        "rename out of it": (lambda me: os.rename("o/f", "new"), "f new"),
        "rename into it": (lambda me: os.rename("x", new), "x " + new),
        "rename into it over another's": (lambda me: os.rename("x", "o/f"), "f x"),
        "rename a directory out of it": (lambda me: os.rename("o/d", "new"), "d new"),
        "rename it into another": (lambda me: os.rename("o", "d/o"), "y o d/o"),
        "exchange with one in it": (lambda me: rename("x", "o/f", EXCHANGE), "f x"),
        "readlink in it": (lambda me: os.readlink("o/l"), "l"),
        "open r, chmod 0, readdir": (
            lambda me: using("o", R, lambda fd: os.chmod("o", 0),
                             lambda fd: ",".join(sorted(os.listdir(fd)))), "f o"),
    }


def on_links():
    keep = ["chown", "utime", "rename", "link", "unlink", "readlink", "stat", "chdir", "exchange"]
    some = {name: op for name, op in attributes("o").items() if name.split()[0].rstrip(",") in keep}
    return some | {
        "open r": (lambda me: using("o", R, read), ""),
        "open w, truncating": (lambda me: using("o", W | TRUNC, write), "o x"),
        "open r, not following": (lambda me: using("o", R | os.O_NOFOLLOW, read), ""),
        "create, existing": (lambda me: using("o", W | CREATE, write), "o x"),
        "lutime": (lambda me: os.utime("o", (GIVEN, GIVEN), follow_symlinks=False), "o"),
    }


# Operations on the name, which depend on the directory that the object is in.
NAMES = ["rename", "rename over another's", "rename, no replace", "exchange", "link", "unlink",
         "rmdir", "open r, creating", "open w, creating", "open w, truncating",
         "open rw, unlink, use", "open r, replace, read", "rename it into another"]


class Case:
    def __init__(self, kind, owner, mode, parent, operation, needs):
        self.kind, self.owner, self.mode, self.parent = kind, owner, mode, parent
        self.operation, self.needs = operation, needs.split()
        held = "" if parent == PARENTS[0] else " in {}:{} {:04o}".format(*parent)
        self.name = f"{kind} {owner[0]}:{owner[1]} {mode:04o}{held} | {operation}"

    def build(self, at):
        """Makes the case's directory. Its contents are settled from the inside
        out, so that times stay as they are set."""
        os.mkdir(at)
        o = at + "/o"
        if self.kind == "dir":
            os.mkdir(o)
            if "f" in self.needs:
                put(o + "/f", 1002, 2000, 0o664)
            if "d" in self.needs:
                os.mkdir(o + "/d")
                settle(o + "/d", 1001, 1001, 0o755)
            if "l" in self.needs:
                os.symlink("f", o + "/l")
            settle(o, *self.owner, self.mode)
        elif self.kind == "link":
            os.symlink("x", o)
            os.chown(o, *self.owner, follow_symlinks=False)
            os.utime(o, (LONG_AGO, LONG_AGO), follow_symlinks=False)
        else:
            put(o, *self.owner, self.mode)
        if "a" in self.needs:
            # A file system without user attributes has none to find either.
            attempt(os.setxattr, o, ATTR, b"old")
        if "x" in self.needs or self.kind == "link":
            put(at + "/x", 1001, 2000, 0o660)
        if "y" in self.needs:
            os.mkdir(at + "/d")
            settle(at + "/d", 1001, 1001, 0o777)
        settle(at, *self.parent)

    def look(self):
        """The names that the operation is about, as the user sees them."""
        inside = {"f": "o/f", "d": "o/d", "l": "o/l", "a": "o", "y": "d"}
        names = [inside.get(name, name) for name in self.needs] or ["o"]
        return {name: attempt(describe, name) for name in names}


def put(path, uid, gid, mode):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, TEXT)
    os.close(fd)
    settle(path, uid, gid, mode)


def settle(path, uid, gid, mode):
    os.chown(path, uid, gid)
    os.chmod(path, mode)
    os.utime(path, (LONG_AGO, LONG_AGO))


def describe(path):
    s = os.lstat(path)
    age = {LONG_AGO: "old", GIVEN: "given"}.get(int(s.st_mtime))
    age = age or ("now" if abs(time.time() - s.st_mtime) < 900 else "wrong")
    text = f"{stat.filemode(s.st_mode)} {s.st_uid}:{s.st_gid} mtime {age}"
    return text if stat.S_ISDIR(s.st_mode) else f"{text} size {s.st_size} links {s.st_nlink}"


def state(at):
    found, left = {".": describe(at)}, [at]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                found[os.path.relpath(entry.path, at)] = describe(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
    return dict(sorted(found.items()))


OPERATIONS = {"file": on_files(), "dir": on_directories(), "link": on_links()}


def matrix():
    usual = PARENTS[0]
    for kind, modes in [("file", FILE_MODES), ("dir", DIR_MODES), ("link", [0o777])]:
        for owner in OWNERS:
            for mode in modes:
                for name, (_, needs) in OPERATIONS[kind].items():
                    yield Case(kind, owner, mode, usual, name, needs)
        for owner in OWNERS[::2]:
            for mode in [0o666, 0o755] if kind == "file" else [0o777]:
                for parent in PARENTS[1:]:
                    for name in NAMES:
                        if name in OPERATIONS[kind]:
                            needs = OPERATIONS[kind][name][1]
                            yield Case(kind, owner, mode, parent, name, needs)


def act(user, cases, answer):
    """The child: becomes the user, goes through the cases below its working
    directory. That stays, so nothing above it has to be searchable for the user."""
    base = os.open(".", os.O_PATH | os.O_DIRECTORY)
    group, groups = USERS[user]
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    os.umask(0o022)
    # If the user cannot even get this far, all cases would fail alike.
    os.chdir(str(user))
    os.fchdir(base)
    with os.fdopen(answer, "w") as out:
        for i, case in enumerate(cases):
            result = attempt(os.chdir, f"{user}/{i}")
            seen = {}
            if result == "ok":
                result = attempt(OPERATIONS[case.kind][case.operation][0], user)
                os.fchdir(base)
                os.chdir(f"{user}/{i}")
                seen = case.look()
                os.fchdir(base)
            print(json.dumps([result, seen]), file=out)


def carry_out(user, cases):
    answers, answer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(answers)
            act(user, cases, answer)
            status = 0
        except BaseException as error:
            print(f"user {user}: {error!r}", file=sys.stderr)
        finally:
            os._exit(status)
    os.close(answer)
    with os.fdopen(answers) as lines:
        got = [json.loads(line) for line in lines]
    _, status = os.waitpid(child, 0)
    if status != 0 or len(got) != len(cases):
        sys.exit(f"user {user} ended with {status} after {len(got)} of {len(cases)} cases")
    return got


def main():
    parser = argparse.ArgumentParser(description="what users may do in a directory")
    parser.add_argument("dir")
    parser.add_argument("--build", help="the same directory, where root may do everything")
    parser.add_argument("--every", type=int, default=1, help="one case in so many")
    given = parser.parse_args()
    build = os.path.abspath(given.build or given.dir)
    os.umask(0)
    os.chdir(given.dir)
    for user in USERS:
        top = f"{build}/{user}"
        os.mkdir(top, 0o755)
        key = lambda case: zlib.crc32(f"{user} {case.name}".encode())
        cases = [case for case in matrix() if key(case) % given.every == 0]
        for i, case in enumerate(cases):
            case.build(f"{top}/{i}")
        for i, (case, (result, seen)) in enumerate(zip(cases, carry_out(user, cases))):
            print(json.dumps({
                "case": f"user {user}, {case.name}",
                "result": result,
                "state": state(f"{top}/{i}"),
                "seen": seen,
            }))
        shutil.rmtree(top)


main()
