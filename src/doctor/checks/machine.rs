//! Rules about this machine: FUSE, limits, kernel.

use super::{CheckOutcome, CheckStatus, FindingText, RawFinding};
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

fn machine_finding(
    status: CheckStatus,
    cost: f64,
    text: FindingText,
    remedy: String,
) -> RawFinding {
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
                FindingText::new(
                    format!("the daemon of the mount {point} has died, so every access fails"),
                    "stat(2) of the mount point fails with ENOTCONN or ECONNABORTED",
                ),
                format!("fanfs umount {word}  (then mount it again)"),
            ),
            _ => (
                FindingText::new(
                    format!("the daemon of the mount {point} does not answer"),
                    "stat(2) of the mount point did not return within --deadline",
                ),
                format!("read the daemon's log; fanfs umount --lazy {word} detaches the mount"),
            ),
        };
        machine_finding(CheckStatus::Bad, 1.0, text, remedy)
    };
    let unkept = facts.unkept.iter().map(|point| {
        let text = FindingText::new(
            format!("the keeper of the mount {point} has died"),
            "the daemon reports that its keeper is gone; the mount is lost if the daemon dies",
        );
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
        let text = FindingText::new("fanfs cannot mount a volume", "/dev/fuse does not exist");
        let remedy = "modprobe fuse (in a container: --device /dev/fuse)".to_owned();
        found.push(machine_finding(CheckStatus::Bad, 1.0, text, remedy));
    }
    if !machine.root && !machine.fusermount3 {
        let text =
            FindingText::new("only root can mount a volume here", "fusermount3 is not in PATH");
        found.push(machine_finding(
            CheckStatus::Bad,
            1.0,
            text,
            "apt-get install fuse3, or run as root".into(),
        ));
    }
    if !machine.root && facts.settings.allow_other && !machine.user_allow_other {
        let text = FindingText::new(
            "this user may not mount with [fuse] allow_other = true",
            "/etc/fuse.conf does not contain user_allow_other",
        );
        let remedy = "echo user_allow_other >>/etc/fuse.conf, as root";
        found.push(machine_finding(CheckStatus::Bad, 1.0, text, remedy.to_owned()));
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
        let evidence = format!(
            "fs.fuse.max_pages_limit = {pages}, so one request has at most {} KiB",
            pages * machine.page / 1024
        );
        let text = FindingText::new("the kernel sends small read requests to fanfs", evidence);
        let remedy = format!("sysctl -w fs.fuse.max_pages_limit={wanted}, then mount again");
        // Requests of 128 KiB, the limit of the oldest kernels, cost a reader about a third.
        found.push(machine_finding(CheckStatus::Warn, 0.3, text, remedy));
    }
    if settings.max_background < MIN_BACKGROUND_REQUESTS {
        let evidence = format!(
            "[fuse] max_background = {}; at least {MIN_BACKGROUND_REQUESTS} is recommended",
            settings.max_background
        );
        let problem = "requests of many concurrent readers wait in the kernel";
        let text = FindingText::new(problem, evidence);
        let remedy = "set [fuse] max_background = 256 in the volume's file".to_owned();
        found.push(machine_finding(CheckStatus::Warn, 0.1, text, remedy));
    }
    let most = machine.fuse_max_user_background.filter(|most| {
        !machine.root && *most < settings.max_background.min(MIN_BACKGROUND_REQUESTS)
    });
    if let Some(most) = most {
        let evidence = format!(
            "max_user_bgreq of the kernel module fuse is {most}; it overrides [fuse] \
             max_background = {} for users other than root",
            settings.max_background
        );
        let problem =
            "requests of many concurrent readers of this user's mounts wait in the kernel";
        let text = FindingText::new(problem, evidence);
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
    let evidence = format!(
        "the hard limit is {most} (/proc/self/limits), enough for about {each} open files of the \
         volume: each needs a descriptor on each replica"
    );
    let text = FindingText::new("opening many files of the volume fails with EMFILE", evidence);
    let remedy = "ulimit -Hn 524288 before mounting; LimitNOFILE=524288 in a unit; `* hard nofile \
                  524288` in /etc/security/limits.conf";
    CheckOutcome::Checked(vec![machine_finding(CheckStatus::Warn, 0.0, text, remedy.to_owned())])
}

pub(super) fn kernel(facts: &DoctorFacts) -> CheckOutcome {
    let Some(release) = &facts.machine.kernel else {
        return CheckOutcome::Unknown("/proc/sys/kernel/osrelease cannot be read".to_owned());
    };
    let mut parts = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let Some(version) = parts.next().zip(parts.next()) else {
        return CheckOutcome::Unknown(format!(
            "the kernel release {release:?} has no version number"
        ));
    };
    let needs = [
        (true, (5, 6), CheckStatus::Bad, 1.0, "the kernel is too old for fanfs (openat2)"),
        (
            facts.settings.passthrough,
            (6, 9),
            CheckStatus::Warn,
            0.1,
            "[read] passthrough has no effect on this kernel",
        ),
    ];
    let found = needs.into_iter().filter(|(used, needed, ..)| *used && version < *needed);
    let found = found.map(|(_, (major, minor), status, cost, problem)| {
        let evidence = format!("this is Linux {release}; {major}.{minor} is required");
        let remedy = format!("boot Linux {major}.{minor} or newer");
        machine_finding(status, cost, FindingText::new(problem, evidence), remedy)
    });
    CheckOutcome::Checked(found.collect())
}
