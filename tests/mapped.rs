//! Memory that is mapped from a file of a mount, in a process of its own.
//!
//! A test whose daemon is in the same process must not map the mount's files. The kernel tries an
//! access to a page twice if the first try gets no page, and keeps the lock of the process's
//! address space during the second one. If a thread of the daemon needs that lock, because it
//! allocates memory, the read that it would answer waits for it: both wait forever.
//! tests/tidy.rs checks that tests map files only here.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::processes::Command;

/// Carries out one command per line, and answers each with `ok N` and N bytes, or with `error` and
/// an errno. System calls copy the mapped bytes: where an access would be a SIGBUS, they fail with
/// EFAULT. A mistake of the script is EINVAL, which no test takes for a replica's error.
const SCRIPT: &str = r#"
import mmap, os, sys
def open_(path, start, length, kind):
    global file, memory
    writable = kind == "written"
    file = os.open(bytes.fromhex(path), os.O_RDWR if writable else os.O_RDONLY)
    try:
        flags = mmap.MAP_PRIVATE if kind == "private" else mmap.MAP_SHARED
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        memory = mmap.mmap(file, int(length), flags, access, offset=int(start))
    except:
        os.close(file)
        raise
    return b""
def read(start, length):
    with memoryview(memory) as all, all[int(start):int(start) + int(length)] as part:
        return os.pread(copy, os.pwrite(copy, part, 0), 0)
def fill(start, length, byte):
    memory[int(start):int(start) + int(length)] = bytes([int(byte)]) * int(length)
    return b""
def write(path, at, first, start, length):
    with memoryview(memory) as all, all[int(start):int(start) + int(length)] as part:
        to = os.open(bytes.fromhex(path), os.O_WRONLY)
        try:
            return str(os.pwritev(to, [bytes.fromhex(first), part], int(at))).encode()
        finally:
            os.close(to)
def close():
    memory.close()
    os.close(file)
    return b""
copy = os.memfd_create("copy")
commands = {"open": open_, "read": read, "fill": fill, "write": write, "close": close}
for line in sys.stdin:
    name, *arguments = line.split()
    try:
        said = commands[name](*arguments)
        sys.stdout.buffer.write(b"ok %d\n" % len(said) + said)
    except Exception as error:
        errno = getattr(error, "errno", None)
        if errno is None:
            sys.stderr.write("%s: %r\n" % (name, error))
        sys.stdout.buffer.write(b"error %d\n" % (errno or 22))
    sys.stdout.flush()
"#;

/// The kind of a mapping.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "the nemesis needs one kind")]
pub(crate) enum Mapping {
    Private,
    Shared,
    /// Shared and writable.
    Written,
}

/// A process that maps one file at a time.
pub(crate) struct Mapper {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

#[allow(dead_code, reason = "the nemesis needs less than tests/mounted.rs")]
impl Mapper {
    /// Starts the process; needs python3.
    pub(crate) fn start() -> io::Result<Self> {
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Self { child, stdin, stdout })
    }

    /// Starts the process, and maps a whole file, as long as its attributes say after the open.
    pub(crate) fn of(path: &Path, kind: Mapping) -> io::Result<Self> {
        let mut mapper = Self::start()?;
        mapper.open(path, 0, 0, kind)?;
        Ok(mapper)
    }

    /// Opens a file and maps `len` bytes of it; with 0 the rest of it.
    pub(crate) fn open(
        &mut self,
        path: &Path,
        start: u64,
        len: u64,
        kind: Mapping,
    ) -> io::Result<()> {
        let kind = format!("{kind:?}").to_lowercase();
        self.ask(&format!("open {} {start} {len} {kind}", hex(path))).map(drop)
    }

    /// Bytes of the mapped memory; fewer behind its end, or if a later page cannot be read.
    pub(crate) fn read(&mut self, start: u64, len: u64) -> io::Result<Vec<u8>> {
        self.ask(&format!("read {start} {len}"))
    }

    /// Sets bytes of the mapped memory.
    pub(crate) fn fill(&mut self, start: u64, len: u64, byte: u8) -> io::Result<()> {
        self.ask(&format!("fill {start} {len} {byte}")).map(drop)
    }

    /// Writes `first`, and then these bytes of the mapped memory, at a place in another file by one
    /// call. Returns the number of bytes written.
    pub(crate) fn write(
        &mut self,
        to: &Path,
        at: u64,
        first: &[u8],
        mapped: Range<u64>,
    ) -> io::Result<usize> {
        let path = hex(to);
        let Range { start, end } = mapped;
        let first: String = first.iter().map(|byte| format!("{byte:02x}")).collect();
        let said = self.ask(&format!("write {path} {at} {first} {start} {}", end - start))?;
        let said = String::from_utf8(said).map_err(io::Error::other)?;
        said.parse().map_err(io::Error::other)
    }

    /// Unmaps the file and closes it.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.ask("close").map(drop)
    }

    fn ask(&mut self, command: &str) -> io::Result<Vec<u8>> {
        writeln!(self.stdin, "{command}")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let answer = line.split_once(' ').and_then(|(word, rest)| Some((word, number(rest)?)));
        match answer {
            Some(("ok", len)) => {
                let mut bytes = vec![0; len];
                self.stdout.read_exact(&mut bytes)?;
                Ok(bytes)
            }
            Some(("error", errno)) => Err(io::Error::from_raw_os_error(errno as i32)),
            _ => Err(io::Error::other(format!("{command}: no answer: {line:?}"))),
        }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        // Also if it waits for a page.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hex(path: &Path) -> String {
    path.as_os_str().as_encoded_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}
