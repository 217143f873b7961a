//! Rules about this machine: FUSE, limits, kernel.

use super::{CheckOutcome, CheckStatus, RawFinding};
use crate::doctor::facts::DoctorFacts;
use crate::volume::shell_word;

/// The kernel's default of `max_pages`, pages: 1 MiB per request.
const DEFAULT_MAX_PAGES: u64 = 256;

/// With 64 background requests, one of 256 readers waited 3.9 s for a read. With 256 requests, it
/// waited 1.0 s (docs/CONFIGURATION.md, `max_background`).
const MIN_BACKGROUND_REQUESTS: u64 = 64;

/// An open file needs a descriptor on each replica that it is read from. A daemon raises its soft
/// limit to the hard one; systemd sets 524288.
const MIN_OPEN_FILES: u64 = 4096;

fn machine_finding(status: CheckStatus, cost: f64, text: String, remedy: String) -> RawFinding {
    RawFinding { status, replicas: Vec::new(), cost, text, remedy }
}

pub(super) fn daemons(facts: &DoctorFacts) -> CheckOutcome {
    if facts.volume.is_none() {
        return CheckOutcome::NotApplicable;
    }
    let one = |(point, state): &(String, &'static str)| {
        let word = shell_word(point);
        let (text, remedy) = match *state {
            "dead" => (
                format!("{point} is mounted, and its daemon has died: every access fails"),
                format!("fanfs umount {word}  (then mount it again)"),
            ),
            _ => (
                format!("{point} is mounted, and its daemon does not answer"),
                format!("its log says why; fanfs umount --lazy {word} detaches the mount"),
            ),
        };
        machine_finding(CheckStatus::Bad, 1.0, text, remedy)
    };
    let unkept = facts.unkept.iter().map(|point| {
        let text = format!("the keeper of {point} has died: if the daemon dies, the mount is lost");
        let word = shell_word(point);
        machine_finding(
            CheckStatus::Warn,
            0.0,
            text,
            format!("fanfs umount {word}  (then mount it again)"),
        )
    });
    CheckOutcome::Checked(facts.unserved.iter().map(one).chain(unkept).collect())
}

pub(super) fn access(facts: &DoctorFacts) -> CheckOutcome {
    let machine = &facts.machine;
    let mut found = Vec::new();
    if !machine.fuse_device {
        let text = "there is no /dev/fuse: nothing can be mounted".to_owned();
        let remedy = "modprobe fuse (in a container: --device /dev/fuse)".to_owned();
        found.push(machine_finding(CheckStatus::Bad, 1.0, text, remedy));
    }
    if !machine.root && !machine.fusermount3 {
        let text = "fusermount3 is not in PATH: only root can mount".to_owned();
        found.push(machine_finding(
            CheckStatus::Bad,
            1.0,
            text,
            "apt-get install fuse3, or run as root".into(),
        ));
    }
    if !machine.root && facts.settings.allow_other && !machine.user_allow_other {
        let text = "[fuse] allow_other = true, and /etc/fuse.conf lets only root do that";
        let remedy = "echo user_allow_other >>/etc/fuse.conf, as root";
        found.push(machine_finding(CheckStatus::Bad, 1.0, text.to_owned(), remedy.to_owned()));
    }
    CheckOutcome::Checked(found)
}

pub(super) fn requests(facts: &DoctorFacts) -> CheckOutcome {
    let machine = &facts.machine;
    let settings = &facts.settings;
    let mut found = Vec::new();
    // Before Linux 6.13 there is no such limit to set, and 256 pages apply.
    let pages = machine.fuse_max_pages.unwrap_or(DEFAULT_MAX_PAGES);
    let wanted = DEFAULT_MAX_PAGES.max(settings.segment_size / machine.page.max(1));
    if pages < DEFAULT_MAX_PAGES {
        let text = format!(
            "fs.fuse.max_pages_limit is {pages}: the kernel asks fanfs for {} KiB at a time",
            pages * machine.page / 1024
        );
        let remedy = format!("sysctl -w fs.fuse.max_pages_limit={wanted}, then mount again");
        // Requests of 128 KiB, the limit of the oldest kernels, cost a reader about a third.
        found.push(machine_finding(CheckStatus::Warn, 0.3, text, remedy));
    }
    if settings.max_background < MIN_BACKGROUND_REQUESTS {
        let text = format!(
            "[fuse] max_background is {}: of more readers at a time the others wait in the kernel",
            settings.max_background
        );
        let remedy = "[fuse] max_background = 256 in the volume's file".to_owned();
        found.push(machine_finding(CheckStatus::Warn, 0.1, text, remedy));
    }
    let most = machine.fuse_max_user_background.filter(|most| {
        !machine.root && *most < settings.max_background.min(MIN_BACKGROUND_REQUESTS)
    });
    if let Some(most) = most {
        let text = format!(
            "a mount that is not root's has {most} requests in the background at most, whatever \
             [fuse] max_background says"
        );
        let remedy = "echo 256 >/sys/module/fuse/parameters/max_user_bgreq, as root".to_owned();
        found.push(machine_finding(CheckStatus::Warn, 0.1, text, remedy));
    }
    CheckOutcome::Checked(found)
}

pub(super) fn descriptors(facts: &DoctorFacts) -> CheckOutcome {
    let Some(most) = facts.machine.open_files.filter(|most| *most < MIN_OPEN_FILES) else {
        return CheckOutcome::Checked(Vec::new());
    };
    let each = most / (facts.replicas.len() as u64 + 1);
    let text = format!(
        "a process may have {most} files open here: about {each} files of the volume at a time; \
         more of them fail with EMFILE"
    );
    let remedy = "ulimit -Hn 524288 before mounting; in a unit LimitNOFILE=524288; in \
                /etc/security/limits.conf `* hard nofile 524288`";
    CheckOutcome::Checked(vec![machine_finding(CheckStatus::Warn, 0.0, text, remedy.to_owned())])
}

pub(super) fn kernel(facts: &DoctorFacts) -> CheckOutcome {
    let Some(release) = &facts.machine.kernel else {
        return CheckOutcome::Unknown("/proc/sys/kernel/osrelease cannot be read".to_owned());
    };
    let mut parts = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let Some(version) = parts.next().zip(parts.next()) else {
        return CheckOutcome::Unknown(format!("{release:?} is no release"));
    };
    let needs = [
        (true, (5, 6), CheckStatus::Bad, 1.0, "fanfs needs 5.6 (openat2)"),
        (
            facts.settings.passthrough,
            (6, 9),
            CheckStatus::Warn,
            0.1,
            "[read] passthrough needs 6.9; files are read as without it",
        ),
    ];
    let found = needs.into_iter().filter(|(used, needed, ..)| *used && version < *needed);
    let found = found.map(|(_, needed, status, cost, why)| {
        let remedy = format!("boot Linux {}.{} or newer", needed.0, needed.1);
        machine_finding(status, cost, format!("this is Linux {release}: {why}"), remedy)
    });
    CheckOutcome::Checked(found.collect())
}
