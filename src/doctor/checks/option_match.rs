//! Whether the replicas are mounted with the same options.

use std::collections::BTreeMap;

use super::remount;
use super::{CheckOutcome, CheckStatus, DoctorFacts, NfsFacts, RawFinding, join_replica_names};
use crate::format::format_bytes;
use crate::volume::mount_table::option_rules::{MAX_RSIZE, OptionFault};

/// An option's value, where it is to be compared.
type OptionValue = fn(&NfsFacts) -> Option<String>;

/// What differs between the mounts, also where it has a check of its own: not the version, as
/// 3 beside 4.2 keeps connections apart.
pub(super) fn options_match(facts: &DoctorFacts) -> CheckOutcome {
    let mounts =
        || facts.replicas.iter().enumerate().filter_map(|(i, r)| Some((i, r.nfs.as_ref()?)));
    if mounts().count() < 2 {
        return CheckOutcome::NotApplicable;
    }
    let security: OptionValue = |nfs| {
        let given = nfs.options.iter().find_map(|option| option.strip_prefix("sec="));
        Some(given.unwrap_or("sys").to_owned())
    };
    let transport: OptionValue = |nfs| {
        // UDP has a check of its own.
        let proto = nfs.proto.as_deref().filter(|proto| !proto.starts_with("udp"))?;
        Some(proto.trim_end_matches('6').to_owned())
    };
    let connections: OptionValue = |nfs| Some(nfs.nconnect.to_string());
    let recovery: OptionValue = |nfs| Some(nfs.recovery.to_owned());
    let attributes: OptionValue = |nfs| {
        let [file_min, file_max, dir_min, dir_max] = nfs.attribute_times_s;
        let times = format!("{file_min}-{file_max} s, {dir_min}-{dir_max} s for directories");
        Some(if nfs.noac { "noac".to_owned() } else { times })
    };
    let keys = [
        ("sec", security),
        ("proto", transport),
        ("nconnect", connections),
        ("hard or soft", recovery),
        ("actimeo", attributes),
    ];
    // What a server may clamp differs by some calls a segment at most.
    let is_small = |i: usize| {
        remount::option_faults(facts, i)
            .iter()
            .any(|fault| matches!(fault, OptionFault::Rsize { .. }))
    };
    let reads = {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let some = mounts().any(|(i, _)| is_small(i)) && !mounts().all(|(i, _)| is_small(i));
        for (i, nfs) in mounts().filter(|_| some) {
            groups.entry(format_bytes(nfs.rsize.unwrap_or(MAX_RSIZE))).or_default().push(i);
        }
        groups
    };
    let grouped = |value: OptionValue| {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (i, nfs) in mounts() {
            groups.entry(value(nfs)?).or_default().push(i);
        }
        Some(groups)
    };
    let differs = |(key, groups): (&str, BTreeMap<String, Vec<usize>>)| {
        let shown = groups
            .iter()
            .map(|(value, who)| format!("{value} of {}", join_replica_names(facts, who)));
        let shown: Vec<String> = shown.collect();
        (shown.len() > 1).then(|| RawFinding {
            status: CheckStatus::Warn,
            replicas: groups.into_values().flatten().collect(),
            cost: 0.0,
            text: format!(
                "{key} is {}: a replica that is slower, fails sooner, shows older files or lets others \
                 in may not be meant",
                shown.join(", ")
            ),
            remedy: format!(
                "findmnt -t nfs,nfs4 -o TARGET,OPTIONS; the same for all ({key}) in /etc/fstab or the \
                 .mount units, then mount again"
            ),
        })
    };
    let options = keys.into_iter().filter_map(|(key, value)| Some((key, grouped(value)?)));
    CheckOutcome::Checked(options.chain([("rsize", reads)]).filter_map(differs).collect())
}
