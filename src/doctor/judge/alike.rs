//! Whether the replicas are mounted with the same options.

use std::collections::BTreeMap;

use super::again;
use super::mounts::iec;
use super::{Facts, Light, Nfs, Problem, Verdict, names};
use crate::volume::mounts::rules::{Fault, LARGEST_RSIZE};

/// An option's value, where it is to be compared.
type Value = fn(&Nfs) -> Option<String>;

/// What differs between the mounts, also where it has a check of its own: not the version, as
/// 3 beside 4.2 keeps connections apart.
pub(super) fn alike(facts: &Facts) -> Verdict {
    let mounts =
        || facts.replicas.iter().enumerate().filter_map(|(i, r)| Some((i, r.nfs.as_ref()?)));
    if mounts().count() < 2 {
        return Verdict::Inapplicable;
    }
    let security: Value = |nfs| {
        let given = nfs.options.iter().find_map(|option| option.strip_prefix("sec="));
        Some(given.unwrap_or("sys").to_owned())
    };
    let transport: Value = |nfs| {
        // UDP has a check of its own.
        let proto = nfs.proto.as_deref().filter(|proto| !proto.starts_with("udp"))?;
        Some(proto.trim_end_matches('6').to_owned())
    };
    let connections: Value = |nfs| Some(nfs.nconnect.to_string());
    let recovery: Value = |nfs| Some(nfs.recovery.to_owned());
    let attributes: Value = |nfs| {
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
        again::options(facts, i).iter().any(|fault| matches!(fault, Fault::Rsize { .. }))
    };
    let reads = {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let some = mounts().any(|(i, _)| is_small(i)) && !mounts().all(|(i, _)| is_small(i));
        for (i, nfs) in mounts().filter(|_| some) {
            groups.entry(iec(nfs.rsize.unwrap_or(LARGEST_RSIZE))).or_default().push(i);
        }
        groups
    };
    let grouped = |value: Value| {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (i, nfs) in mounts() {
            groups.entry(value(nfs)?).or_default().push(i);
        }
        Some(groups)
    };
    let differs = |(key, groups): (&str, BTreeMap<String, Vec<usize>>)| {
        let shown = groups.iter().map(|(value, who)| format!("{value} of {}", names(facts, who)));
        let shown: Vec<String> = shown.collect();
        (shown.len() > 1).then(|| Problem {
            light: Light::Warn,
            replicas: groups.into_values().flatten().collect(),
            cost: 0.0,
            text: format!(
                "{key} is {}: a replica that is slower, fails sooner, shows older files or lets others \
                 in may not be meant",
                shown.join(", ")
            ),
            mend: format!(
                "findmnt -t nfs,nfs4 -o TARGET,OPTIONS; the same for all ({key}) in /etc/fstab or the \
                 .mount units, then mount again"
            ),
        })
    };
    let options = keys.into_iter().filter_map(|(key, value)| Some((key, grouped(value)?)));
    Verdict::Seen(options.chain([("rsize", reads)]).filter_map(differs).collect())
}
