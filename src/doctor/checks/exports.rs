//! Rules about exports, which fanfs reads without a mount.

use std::collections::BTreeSet;

use super::mounts::{MANY_CALLS, call_overhead_share};
use super::network::{HIGH_RETRANSMIT_SHARE, MIN_CALLS, RETRANSMIT_SHARE};
use super::remount::MAX_CALLS_PER_SEGMENT;
use super::{
    CheckOutcome, CheckStatus, FindingText, RawFinding, check_exports, replica_share, replicas_text,
};
use crate::doctor::facts::{DoctorFacts, ExaminedReplica};
use crate::format::{format_bytes, format_percent_precise};
use crate::mount_table::option_rules::MAX_RSIZE;
use crate::volume::shell_word;

/// NFSv3 has no proof of it.
pub(super) fn one_server(facts: &DoctorFacts) -> CheckOutcome {
    let exports: Vec<_> = facts.replicas.iter().filter_map(|r| r.export.as_ref()).collect();
    if exports.len() < 2 {
        return CheckOutcome::NotApplicable;
    }
    let Some(groups) = &facts.one_server else {
        let is_comparable = exports.iter().filter(|export| export.version != "3").count() > 1;
        let why = match is_comparable {
            true => "a server did not answer",
            false => "NFSv3 does not show which addresses are of one server",
        };
        return CheckOutcome::Unknown(why.to_owned());
    };
    let finding = |group: &Vec<usize>| {
        let first = |i: &usize| facts.replicas[*i].export.as_ref()?.addresses.first().cloned();
        let addresses: Vec<String> =
            group.iter().filter_map(first).collect::<BTreeSet<_>>().into_iter().collect();
        let evidence = match &addresses[..] {
            [one] => format!("all of them are at {one}"),
            several => {
                format!("{} share an NFSv4.1 session (BIND_CONN_TO_SESSION)", several.join(" and "))
            }
        };
        RawFinding {
            status: CheckStatus::Warn,
            replicas: group.clone(),
            cost: 0.0,
            text: FindingText::new(
                format!(
                    "{} are on one server: reading from more than one of them is faster \
                     only if its links are the limit, and they fail together",
                    replicas_text(facts, group)
                ),
                evidence,
            ),
            remedy: "make them one replica: a DNS name with all addresses of the server, which \
                     fanfs then uses in turn; other replicas need other servers"
                .to_owned(),
        }
    };
    CheckOutcome::Checked(groups.iter().map(finding).collect())
}

pub(super) fn read_size(facts: &DoctorFacts) -> CheckOutcome {
    check_exports(facts, |i, replica, export| {
        let best = facts.settings.segment_size.min(MAX_RSIZE);
        let size = export.max_read;
        let calls = best.div_ceil(size.max(1));
        (calls > MAX_CALLS_PER_SEGMENT).then(|| RawFinding {
            status: if calls >= MANY_CALLS { CheckStatus::Bad } else { CheckStatus::Warn },
            replicas: vec![i],
            cost: call_overhead_share(size, best) * replica_share(facts),
            text: FindingText::new(
                format!(
                    "replica {} needs {calls} READ calls for {}",
                    replica.name,
                    format_bytes(best)
                ),
                format!(
                    "the server {} answers READs of {} at most (NFSv{})",
                    export.server,
                    format_bytes(size),
                    export.version
                ),
            ),
            remedy: format!(
                "on {}, raise the limit: Linux: /proc/fs/nfsd/max_block_size, before nfsd starts; \
                 NFS-Ganesha: MaxRead and PrefRead of the export",
                export.server
            ),
        })
    })
}

pub(super) fn repeated_calls(facts: &DoctorFacts) -> CheckOutcome {
    let counted = |r: &ExaminedReplica| r.export.as_ref().is_some_and(|e| e.calls.is_some());
    if facts.replicas.iter().any(|r| r.export.is_some()) && !facts.replicas.iter().any(counted) {
        return CheckOutcome::Unknown(
            "the volume is not mounted, so no daemon has counted calls".into(),
        );
    }
    check_exports(facts, |i, replica, export| {
        let stats = export.calls?;
        let again = stats.resends + stats.late_replies;
        let share = again as f64 / stats.calls.max(1) as f64;
        let is_bad = share >= HIGH_RETRANSMIT_SHARE;
        (stats.calls >= MIN_CALLS && share >= RETRANSMIT_SHARE).then(|| RawFinding {
            status: if is_bad { CheckStatus::Bad } else { CheckStatus::Warn },
            replicas: vec![i],
            cost: (share * 5.0).min(0.9) * replica_share(facts),
            text: FindingText::new(
                format!("the server of replica {} lost calls or answered them late", replica.name),
                format!(
                    "of {} calls since the daemon's start, {} were sent again after a connection had \
                     ended and {} were answered after fanfs had given them up ({} in all, {} \
                     connections; fanfs status)",
                    stats.calls,
                    stats.resends,
                    stats.late_replies,
                    format_percent_precise(share),
                    stats.connects
                ),
            ),
            remedy: format!(
                "ping {0}; on {0}: its load, the number of its threads (rpc.nfsd N; Nb_Worker of \
                 NFS-Ganesha), its log",
                shell_word(&export.server)
            ),
        })
    })
}
