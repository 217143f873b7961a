//! The load on the mount, beside the readers of the first nemesis.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::plan::{ENOTCONN, Failure, Plan};
use super::site::Site;
use crate::content::{self, BLOCK_OF_FILES as SIZE, DIRECTORIES};
use crate::judge::{Call, Judge, Seat};
use crate::readers::{Manner, Reader};
use crate::schedule::Random;
use crate::stamp;
use crate::world::{DEADLINE, WRITE_DEADLINE};

/// Files in the nested file system.
pub(crate) const NESTED: u64 = 5;

/// Bytes of a line in the log, the file for appends.
const LINE: usize = 16;

/// An ordinary user.
const OTHER_USER: u32 = 65_534;

pub(crate) struct Load<'a> {
    pub(crate) judge: &'a Judge,
    pub(crate) plan: &'a Plan,
    pub(crate) site: &'a Site,
}

/// Files and lines whose write was acknowledged.
#[derive(Default)]
pub(crate) struct Written {
    files: BTreeSet<u64>,
    lines: BTreeSet<u64>,
    /// Number of the first line that was not started.
    next_line: u64,
}

impl Load<'_> {
    /// Whether a change that starts now may fail: the write replica fails, the daemon is killed, or
    /// an earlier change may still wait because of either.
    fn write_may_fail(&self) -> bool {
        let now = self.judge.now();
        let from = now.saturating_sub(2 * WRITE_DEADLINE + DEADLINE);
        let until = now + 2 * DEADLINE;
        !self.judge.schedule.is_well(0, from, until) || self.plan.kills(from, until)
    }

    fn change<T>(
        &self,
        seat: Seat,
        name: &'static str,
        make: impl FnOnce() -> io::Result<T>,
    ) -> Option<T> {
        let call = Call::other(name, 4).within(WRITE_DEADLINE.max(DEADLINE));
        self.judge.make(seat, call.or_fail(self.write_may_fail()), make)
    }

    /// Creates files, and appends lines to a log that stays open.
    pub(crate) fn write(&self, seat: Seat, mut random: Random, written: &Mutex<Written>) {
        let dir = self.site.path("mnt/w");
        let mut log: Option<File> = None;
        let mut number = 0;
        while !self.judge.is_over() {
            std::thread::sleep(random.time(30, 120));
            if log.is_none() {
                log = self.change(seat, "an open to append", || {
                    File::options().append(true).create(true).open(dir.join("log"))
                });
            }
            if let Some(to) = &mut log {
                let line = {
                    let mut written = written.lock();
                    written.next_line += 1;
                    written.next_line - 1
                };
                let text = format!("{line:0width$}\n", width = LINE - 1);
                let done = self.change(seat, "an append", || to.write_all(text.as_bytes()));
                if done.is_some() && self.change(seat, "an fsync", || to.sync_all()).is_some() {
                    written.lock().lines.insert(line);
                } else {
                    log = None;
                }
            }
            number += 1;
            if self.write_file(seat, &dir, number).is_some() {
                written.lock().files.insert(number);
            }
        }
        // close(2) has no new error after the fsync.
        drop(log);
    }

    fn write_file(&self, seat: Seat, dir: &Path, number: u64) -> Option<()> {
        let path = dir.join(format!("f{number}"));
        let made = self.change(seat, "a create", || File::create_new(path))?;
        let mut bytes = stamp::Pages::new(SIZE);
        stamp::write(number, 0, &mut bytes);
        self.change(seat, "a write", || made.write_all_at(&bytes, 0))?;
        self.change(seat, "an fsync", || made.sync_all())?;
        self.change(seat, "a close", || {
            drop(made);
            Ok(())
        })
    }

    /// Checks that the tree below the replicas holds every acknowledged file and line.
    pub(crate) fn check(&self, written: &Mutex<Written>) {
        let dir = self.site.path("tree/w");
        let note = |text: String| self.judge.bytes(Err(text));
        let files = std::mem::take(&mut written.lock().files);
        let mut right = stamp::Pages::new(SIZE);
        for number in files {
            stamp::write(number, 0, &mut right);
            let path = dir.join(format!("f{number}"));
            match fs::read(&path) {
                Ok(bytes) if bytes == right[..] => {
                    self.judge.bytes(Ok(SIZE as u64));
                    let _ = fs::remove_file(&path);
                }
                Ok(bytes) => {
                    note(format!("f{number} was written, and is not right ({} bytes)", bytes.len()))
                }
                Err(error) => note(format!("f{number} was written, and is not there: {error}")),
            }
        }
        let sure = written.lock().lines.clone();
        let text = match fs::read(dir.join("log")) {
            Ok(text) => text,
            Err(_) if sure.is_empty() => return,
            Err(error) => return note(format!("the log is not there: {error}")),
        };
        // The writer continues: only now is every line of the text known to be started.
        let begun = written.lock().next_line;
        let mut seen = BTreeSet::new();
        for line in text.chunks(LINE) {
            let number = std::str::from_utf8(line).ok().and_then(|line| line.trim().parse().ok());
            match number {
                Some(number) if number >= begun => note(format!("line {number} was never begun")),
                Some(number) if seen.insert(number) => {}
                Some(number) => note(format!("line {number} was appended twice")),
                None => note(format!("{line:?} was never appended")),
            }
        }
        if let Some(lost) = sure.difference(&seen).next() {
            note(format!("line {lost} was appended, and is not there"));
        }
    }

    /// Looks into the nested file system, which may fail, and lists its parent directory,
    /// which must not.
    pub(crate) fn touch_nested(&self, seat: Seat, mut random: Random) {
        while !self.judge.is_over() {
            std::thread::sleep(random.time(20, 200));
            let now = self.judge.now();
            let about = (now.saturating_sub(DEADLINE), now + 3 * DEADLINE);
            let fails = |how| self.plan.nested_fails(how, about.0, about.1);
            let hangs = fails(Failure::Hangs);
            let may_fail = hangs || fails(Failure::Dies);
            if random.below(3) == 0 {
                let call = Call::other("a listing of the root", 3).or_fail(hangs);
                let list = || fs::read_dir(self.site.path("mnt"))?.collect::<io::Result<Vec<_>>>();
                if let Some(entries) = self.judge.make(seat, call, list) {
                    // The large files, the directories, nested, w and private.
                    let there = content::LARGE.len() + DIRECTORIES as usize + 3;
                    if entries.len() != there {
                        let names: Vec<_> = entries.iter().map(|e| e.file_name()).collect();
                        self.judge.bytes(Err(format!("the root lists {names:?}, not {there}")));
                    }
                }
                continue;
            }
            let number = random.below(NESTED);
            let path = self.site.path(&format!("mnt/nested/n{number}"));
            let call = Call::other("a look into a nested mount", 6).or_fail(may_fail);
            // A detached replica loses its nested mount a moment earlier, and shows the empty
            // directory below that.
            let dead = |error: io::Error| match error.kind() {
                io::ErrorKind::NotFound if may_fail => io::Error::from_raw_os_error(ENOTCONN),
                _ => error,
            };
            if random.below(2) == 0 {
                self.judge.make(seat, call, || fs::metadata(&path).map_err(dead));
                continue;
            }
            let read = || fs::read_to_string(&path).map_err(dead);
            if let Some(text) = self.judge.make(seat, call, read) {
                let right = text == format!("nested {number}\n");
                self.judge.bytes(match right {
                    true => Ok(text.len() as u64),
                    false => Err(format!("nested/n{number} is {text:?}")),
                });
            }
        }
    }

    /// An ordinary user reads, and may not open root's file.
    pub(crate) fn be_ordinary(&self, seat: Seat, mut random: Random) {
        let (uid, gid) = (Uid::from_raw(OTHER_USER), Gid::from_raw(OTHER_USER));
        // The kernel keeps credentials for each thread.
        set_thread_groups(&[]).expect("root may");
        set_thread_res_gid(gid, gid, gid).expect("root may");
        set_thread_res_uid(uid, uid, uid).expect("root may");
        let root = self.site.path("mnt");
        let mut reader = Reader {
            judge: self.judge,
            root: root.clone(),
            random: random.fork(),
            seat,
            mapper: None,
        };
        while !self.judge.is_over() {
            match random.below(3) {
                0 => reader.once(Manner::Small),
                1 => reader.once(Manner::Looking),
                _ => self.try_private(seat, &root),
            }
            std::thread::sleep(random.time(5, 40));
        }
    }

    fn try_private(&self, seat: Seat, root: &Path) {
        let path = root.join("private");
        let call = Call::other("an open of a private file", 3);
        let refused = self.judge.make(seat, call, || {
            match File::open(&path).and_then(|mut file| file.read(&mut [0; 8])) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(true),
                Err(error) => Err(error),
                Ok(_) => Ok(false),
            }
        });
        if refused == Some(false) {
            self.judge.bytes(Err("an ordinary user read root's file".to_owned()));
        }
    }
}

/// Most extra time of a call: the daemon is killed or replaced, and the next one starts
/// over replicas that do not answer.
pub(crate) const RESTART: Duration = Duration::from_secs(15);
