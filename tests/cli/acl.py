"""Becomes user UID and looks at files in DIR; prints one line for each look."""

import os
import subprocess
import sys

directory, uid = sys.argv[1], int(sys.argv[2])
os.setgroups([])
os.setgid(uid)
os.setuid(uid)


def run(path):
    # Only the kernel's exec counts; the shell may still fail to read the script.
    return subprocess.run([path], capture_output=True).stdout.decode() or "started"


def read(path):
    with open(path) as file:
        return file.read()


looks = [
    ("stat in", lambda: os.stat("denied/file").st_size),
    ("readlink in", lambda: os.readlink("denied/link")),
    ("xattr in", lambda: os.getxattr("denied/file", "user.secret")),
    ("list", lambda: sorted(os.listdir("denied"))),
    ("xattr", lambda: os.getxattr("file", "user.secret")),
    ("read", lambda: read("file")),
    ("run", lambda: run("./program")),
    ("names", lambda: sorted(name for name in os.listxattr("plain") if "." in name)),
    ("plain", lambda: read("plain")),
]
os.chdir(directory)
for name, look in looks:
    try:
        print(name, look())
    except OSError as error:
        print(name, error.errno)
