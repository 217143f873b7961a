//! Rules about this machine: FUSE, limits, kernel.

use super::{Light, Problem, Verdict};
use crate::doctor::facts::Facts;
use crate::volume::name::shell_word;

/// The kernel's default of `max_pages`, pages: 1 MiB a request.
const USUAL_PAGES: u64 = 256;

/// With 64 requests in the background one of 256 readers waited 3.9 s for a read,
/// with 256 1.0 s (CONFIGURATION.md).
const BACKGROUND: u64 = 64;

/// A file that is open needs a descriptor on each replica it is read from; a daemon
/// raises its own limit as far as the hard one goes. systemd's own is 524288.
const FILES: u64 = 4096;

fn problem(light: Light, cost: f64, text: String, mend: String) -> Problem {
    Problem { light, replicas: Vec::new(), cost, text, mend }
}

pub(super) fn daemons(facts: &Facts) -> Verdict {
    if facts.volume.is_none() {
        return Verdict::Inapplicable;
    }
    let one = |(point, state): &(String, &'static str)| {
        let word = shell_word(point);
        let (text, mend) = match *state {
            "dead" => (
                format!("{point} is mounted, and its daemon has died: every access fails"),
                format!("fanfs umount {word}  (then mount it again)"),
            ),
            _ => (
                format!("{point} is mounted, and its daemon does not answer"),
                format!("its log says why; fanfs umount --lazy {word} detaches the mount"),
            ),
        };
        problem(Light::Bad, 1.0, text, mend)
    };
    let unkept = facts.unkept.iter().map(|point| {
        let text = format!("the keeper of {point} has died: if the daemon dies, the mount is lost");
        let word = shell_word(point);
        problem(Light::Warn, 0.0, text, format!("fanfs umount {word}  (then mount it again)"))
    });
    Verdict::Seen(facts.unserved.iter().map(one).chain(unkept).collect())
}

pub(super) fn access(facts: &Facts) -> Verdict {
    let machine = &facts.machine;
    let mut found = Vec::new();
    if !machine.fuse_device {
        let text = "there is no /dev/fuse: nothing can be mounted".to_owned();
        let mend = "modprobe fuse (in a container: --device /dev/fuse)".to_owned();
        found.push(problem(Light::Bad, 1.0, text, mend));
    }
    if !machine.root && !machine.fusermount3 {
        let text = "fusermount3 is not in PATH: only root can mount".to_owned();
        found.push(problem(Light::Bad, 1.0, text, "apt-get install fuse3, or run as root".into()));
    }
    if !machine.root && facts.settings.allow_other && !machine.user_allow_other {
        let text = "[fuse] allow_other = true, and /etc/fuse.conf lets only root do that";
        let mend = "echo user_allow_other >>/etc/fuse.conf, as root";
        found.push(problem(Light::Bad, 1.0, text.to_owned(), mend.to_owned()));
    }
    Verdict::Seen(found)
}

pub(super) fn requests(facts: &Facts) -> Verdict {
    let (machine, settings) = (&facts.machine, &facts.settings);
    let mut found = Vec::new();
    // Before Linux 6.13 there is no limit to be set, and 256 pages it is.
    let pages = machine.fuse_max_pages.unwrap_or(USUAL_PAGES);
    let wanted = USUAL_PAGES.max(settings.segment_size / machine.page.max(1));
    if pages < USUAL_PAGES {
        let text = format!(
            "fs.fuse.max_pages_limit is {pages}: the kernel asks fanfs for {} KiB at a time",
            pages * machine.page / 1024
        );
        let mend = format!("sysctl -w fs.fuse.max_pages_limit={wanted}, then mount again");
        // 128 KiB, the kernel's oldest size, costs a reader about a third.
        found.push(problem(Light::Warn, 0.3, text, mend));
    }
    if settings.max_background < BACKGROUND {
        let text = format!(
            "[fuse] max_background is {}: of more readers at a time the others wait in the kernel",
            settings.max_background
        );
        let mend = "[fuse] max_background = 256 in the volume's file".to_owned();
        found.push(problem(Light::Warn, 0.1, text, mend));
    }
    let most = machine
        .fuse_max_user_background
        .filter(|most| !machine.root && *most < settings.max_background.min(BACKGROUND));
    if let Some(most) = most {
        let text = format!(
            "a mount that is not root's has {most} requests in the background at most, whatever \
             [fuse] max_background says"
        );
        let mend = "echo 256 >/sys/module/fuse/parameters/max_user_bgreq, as root".to_owned();
        found.push(problem(Light::Warn, 0.1, text, mend));
    }
    Verdict::Seen(found)
}

pub(super) fn descriptors(facts: &Facts) -> Verdict {
    let Some(most) = facts.machine.open_files.filter(|most| *most < FILES) else {
        return Verdict::Seen(Vec::new());
    };
    let each = most / (facts.replicas.len() as u64 + 1);
    let text = format!(
        "a process may have {most} files open here: about {each} files of the volume at a time; \
         more of them fail with EMFILE"
    );
    let mend = "ulimit -Hn 524288 before mounting; in a unit LimitNOFILE=524288; in \
                /etc/security/limits.conf `* hard nofile 524288`";
    Verdict::Seen(vec![problem(Light::Warn, 0.0, text, mend.to_owned())])
}

pub(super) fn kernel(facts: &Facts) -> Verdict {
    let Some(release) = &facts.machine.kernel else {
        return Verdict::Unknown("/proc/sys/kernel/osrelease cannot be read".to_owned());
    };
    let mut parts = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let Some(version) = parts.next().zip(parts.next()) else {
        return Verdict::Unknown(format!("{release:?} is no release"));
    };
    let needs = [
        (true, (5, 6), Light::Bad, 1.0, "fanfs needs 5.6 (openat2)"),
        (
            facts.settings.passthrough,
            (6, 9),
            Light::Warn,
            0.1,
            "[read] passthrough needs 6.9; files are read as without it",
        ),
    ];
    let found = needs.into_iter().filter(|(used, needed, ..)| *used && version < *needed);
    let found = found.map(|(_, needed, light, cost, why)| {
        let mend = format!("boot Linux {}.{} or newer", needed.0, needed.1);
        problem(light, cost, format!("this is Linux {release}: {why}"), mend)
    });
    Verdict::Seen(found.collect())
}
