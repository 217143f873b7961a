//! Helpers for some tests.

use std::fs;

use crate::room::Room;
use crate::signals;

impl Room {
    /// As [`Room::volume`], but writable.
    pub(crate) fn write_volume(&self, name: &str, more: &str) {
        self.volume(name, "", more);
        let text = fs::read_to_string(self.path(name)).unwrap();
        fs::write(self.path(name), text.replace("mode =", "access = \"rw\"\nmode =")).unwrap();
    }

    /// The daemons' log.
    pub(crate) fn log(&self) -> String {
        let files = fs::read_dir(self.path("run")).unwrap().map(|entry| entry.unwrap().path());
        let logs = files.filter(|path| path.extension().is_some_and(|e| e == "log"));
        logs.map(|path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()).collect()
    }

    /// Stops a daemon, and waits until none of its threads can take a request any more: a process
    /// whose request was taken cannot even be killed.
    pub(crate) fn stop(&self, daemon: rustix::process::Pid) {
        signals::send(daemon, rustix::process::Signal::STOP);
    }
}
