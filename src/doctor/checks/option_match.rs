//! Whether the replicas are mounted with the same options.

use std::collections::BTreeMap;

use super::{
    CheckOutcome, CheckStatus, DoctorFacts, FindingText, NfsFacts, RawFinding, join_replica_names,
    remount,
};
use crate::format::format_bytes;
use crate::mount_table::option_rules::{MAX_RSIZE, OptionFault};

/// An option's value; `None` if it must not be compared.
type OptionValue = fn(&NfsFacts) -> Option<String>;

/// For each value of an option, the indices of the replicas that have it.
type ReplicasByValue = BTreeMap<String, Vec<usize>>;

/// The options that are compared, in addition to rsize.
const OPTIONS: [(&str, OptionValue); 5] = [
    ("sec", security),
    ("proto", transport),
    ("nconnect", |nfs| Some(nfs.nconnect.to_string())),
    ("hard/soft", |nfs| Some(nfs.recovery.to_owned())),
    ("actimeo", attribute_times),
];

/// Reports the options that differ between the mounts, even if they have their own check. The NFS
/// version may differ: 3 beside 4.2 keeps connections apart.
pub(super) fn options_match(facts: &DoctorFacts) -> CheckOutcome {
    if nfs_mounts(facts).count() < 2 {
        return CheckOutcome::NotApplicable;
    }
    let options = OPTIONS.into_iter().filter_map(|(key, value)| {
        let groups = group_by_option(facts, value)?;
        difference(facts, key, groups)
    });
    let reads = difference(facts, "rsize", group_by_small_rsize(facts));
    CheckOutcome::Checked(options.chain(reads).collect())
}

fn nfs_mounts(facts: &DoctorFacts) -> impl Iterator<Item = (usize, &NfsFacts)> {
    facts.replicas.iter().enumerate().filter_map(|(i, r)| Some((i, r.nfs.as_ref()?)))
}

fn security(nfs: &NfsFacts) -> Option<String> {
    let option = nfs.options.iter().find_map(|option| option.strip_prefix("sec="));
    Some(option.unwrap_or("sys").to_owned())
}

/// The transport. UDP is not compared, because it has its own check.
fn transport(nfs: &NfsFacts) -> Option<String> {
    let proto = nfs.proto.as_deref().filter(|proto| !proto.starts_with("udp"))?;
    Some(proto.trim_end_matches('6').to_owned())
}

fn attribute_times(nfs: &NfsFacts) -> Option<String> {
    let [file_min, file_max, dir_min, dir_max] = nfs.attribute_times_s;
    let times = format!("{file_min}-{file_max} s, {dir_min}-{dir_max} s for directories");
    Some(if nfs.noac { "noac".to_owned() } else { times })
}

/// Groups the replicas by an option's value; `None` if the option of some mount must not be
/// compared.
fn group_by_option(facts: &DoctorFacts, value: OptionValue) -> Option<ReplicasByValue> {
    let mut groups = ReplicasByValue::new();
    for (i, nfs) in nfs_mounts(facts) {
        groups.entry(value(nfs)?).or_default().push(i);
    }
    Some(groups)
}

/// Groups the replicas by rsize, if some are too small and others are not. Other differences, such
/// as servers that clamp to different sizes, change the calls per segment only a little.
fn group_by_small_rsize(facts: &DoctorFacts) -> ReplicasByValue {
    let is_small = |(i, _): (usize, &NfsFacts)| {
        remount::option_faults(facts, i)
            .iter()
            .any(|fault| matches!(fault, OptionFault::Rsize { .. }))
    };
    let mut groups = ReplicasByValue::new();
    if nfs_mounts(facts).any(is_small) && !nfs_mounts(facts).all(is_small) {
        for (i, nfs) in nfs_mounts(facts) {
            groups.entry(format_bytes(nfs.rsize.unwrap_or(MAX_RSIZE))).or_default().push(i);
        }
    }
    groups
}

fn difference(facts: &DoctorFacts, key: &str, groups: ReplicasByValue) -> Option<RawFinding> {
    let shown: Vec<String> = groups
        .iter()
        .map(|(value, replicas)| format!("{value} on {}", join_replica_names(facts, replicas)))
        .collect();
    (shown.len() > 1).then(|| RawFinding {
        status: CheckStatus::Warn,
        replicas: groups.into_values().flatten().collect(),
        cost: 0.0,
        text: FindingText::new(
            format!("the replicas are mounted with different values of {key}"),
            format!("{} (mount table)", shown.join(", ")),
        ),
        remedy: format!(
            "if this is not intended, set {key} to one value in /etc/fstab or the .mount units, \
             then mount again; findmnt -t nfs,nfs4 -o TARGET,OPTIONS shows all options"
        ),
    })
}
