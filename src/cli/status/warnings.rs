//! The warnings of `fanfs status` about replicas: one line for each cause, not for each replica.
//!
//! A volume has up to 64 replicas, and one cause, such as a dead switch, affects many of them. So
//! replicas with the same cause share a line, which names the first ones and counts the others.
//!
//! Pure.

use std::time::Duration;

use crate::cli::printable;
use crate::format::{format_count, format_names};
use crate::replicas::health::{HealthReason, HealthState};
use crate::status::{HungObject, ReplicaStatus, Status};

/// All warnings about replicas, without their indentation.
pub(super) fn replica_warnings(status: &Status) -> Vec<String> {
    let mut warnings = health_warnings(status);
    warnings.extend(hung_object_warnings(status));
    warnings
}

/// The replicas that are out of service, for `--check`.
pub(super) fn service_failures(status: &Status) -> Vec<String> {
    let out = status.replicas.iter().filter(|replica| is_out_of_service(replica));
    let keyed = out.map(|replica| {
        let key = cause(replica).map(|cause| cause.shared_text).unwrap_or_default();
        ((replica.health, key), replica)
    });
    let failure = |((health, _), members): ((HealthState, String), Vec<&ReplicaStatus>)| {
        let health = health_label(health);
        let cause = cause(members[0]);
        match members[..] {
            [one] => {
                let why = cause.map(|cause| format!(": {}", cause.text)).unwrap_or_default();
                format!("replica {} is {health}{why}", one.name)
            }
            _ => {
                let why = cause.map(|cause| format!(": {}", cause.shared_text)).unwrap_or_default();
                format!("{} are {health}{why}", name_list(&members))
            }
        }
    };
    group_by_key(keyed).into_iter().map(failure).collect()
}

/// The replicas that are not read for some files because their data differs.
pub(super) fn differing_warning(replicas: &[ReplicaStatus]) -> Option<String> {
    let differing: Vec<_> =
        replicas.iter().filter(|replica| replica.counters.differing > 0).collect();
    let most = differing.iter().map(|replica| replica.counters.differing).max()?;
    let files = format_count(most, "file");
    let names = name_list(&differing);
    Some(match differing.len() {
        1 => format!("{names} is not read for {files}: its data differs"),
        _ => format!("{names} are not read for up to {files} each: their data differs"),
    })
}

/// The name of a health state.
pub(super) fn health_label(state: HealthState) -> &'static str {
    match state {
        HealthState::Healthy => "healthy",
        HealthState::Suspect => "suspect",
        HealthState::Ejected => "ejected",
        HealthState::Probing => "probing",
        HealthState::Absent => "absent",
    }
}

/// Why a replica is not healthy.
struct Cause {
    /// The cause on one replica.
    text: String,
    /// The cause on each of several replicas; equal for replicas with the same cause.
    shared_text: String,
}

fn cause(replica: &ReplicaStatus) -> Option<Cause> {
    if let Some(text) = &replica.absence {
        // The text names the replica and its path, and may end with a fix for that path.
        let path = replica.path.to_string_lossy();
        let subject = format!("replica {} ({path})", replica.name);
        let (it, each) = match text.strip_prefix(&subject) {
            Some(predicate) => {
                let problem = predicate.split(';').next().unwrap_or(predicate);
                (format!("{path}{predicate}"), format!("each{problem}"))
            }
            None => (text.clone(), text.replace(&*path, "its path")),
        };
        return Some(Cause { text: it, shared_text: each });
    }
    let text = reason_text(replica.health_reason)?.to_owned();
    Some(Cause { shared_text: text.clone(), text })
}

/// Whether fanfs sends it no reads except probes.
fn is_out_of_service(replica: &ReplicaStatus) -> bool {
    !matches!(replica.health, HealthState::Healthy | HealthState::Suspect)
}

/// The reason for a health state, unless it is a good one.
fn reason_text(reason: HealthReason) -> Option<&'static str> {
    Some(match reason {
        HealthReason::Started | HealthReason::Delivered | HealthReason::Quiet => return None,
        HealthReason::Failed => "a call failed",
        HealthReason::Late => "a call was slow",
        HealthReason::Failures => "too many calls failed",
        HealthReason::Stalled => "delivered nothing while other replicas did",
        HealthReason::Deadline => "a read took longer than attempt_deadline",
        HealthReason::Slow => "delivered less than a twentieth of the fastest replica's rate",
        HealthReason::Proved => "the mount check passed and probing began",
        HealthReason::Gone => "the mount is gone",
    })
}

fn health_warnings(status: &Status) -> Vec<String> {
    let keyed = status.replicas.iter().filter_map(|replica| {
        let cause = cause(replica)?;
        let key = (replica.absence.is_some(), cause.shared_text.clone());
        Some((key, CauseOf { replica, cause }))
    });
    let warning = |((is_absent, _), members): ((bool, String), Vec<CauseOf<'_>>)| {
        let replicas: Vec<&ReplicaStatus> = members.iter().map(|of| of.replica).collect();
        let names = name_list(&replicas);
        let Cause { text, shared_text } = &members[0].cause;
        match (is_absent, members.len()) {
            (true, 1) => {
                format!("replica {names} is absent: {text}; fanfs uses it again when it recovers")
            }
            (true, _) => format!(
                "{names} are absent: {shared_text}; `fanfs check` shows how to fix each; \
                 fanfs uses them again when they recover"
            ),
            (false, _) => {
                let since = replicas.iter().map(|replica| replica.health_since_s);
                let ages = since.map(|since| status.time_s.seconds_since(since));
                let hung: usize = replicas.iter().map(|replica| replica.hung_threads).sum();
                let hung = match hung {
                    0 => String::new(),
                    count => format!("; {}", format_count(count as u64, "hung thread")),
                };
                format!("{names}: {shared_text}, {} ago{hung}", age_range(ages))
            }
        }
    };
    group_by_key(keyed).into_iter().map(warning).collect()
}

struct CauseOf<'a> {
    replica: &'a ReplicaStatus,
    cause: Cause,
}

/// An object on one replica on which calls hang.
struct HungOn<'a> {
    replica: &'a ReplicaStatus,
    object: &'a HungObject,
}

/// The most hung objects with a line each: one hung replica may hold many.
const MAX_HUNG_LINES: usize = 4;

fn hung_object_warnings(status: &Status) -> Vec<String> {
    let replicas = &status.replicas;
    let all = replicas.iter().flat_map(|replica| {
        replica.hung.iter().map(move |object| (&object.path, HungOn { replica, object }))
    });
    let warning = |(path, members): (&String, Vec<HungOn<'_>>)| {
        let path = if path.is_empty() { "/" } else { path };
        let replicas: Vec<&ReplicaStatus> = members.iter().map(|hung| hung.replica).collect();
        let threads: usize = members.iter().map(|hung| hung.object.threads).sum();
        format!(
            "{}: calls on {} have hung for {}; {}",
            name_list(&replicas),
            printable(path),
            age_range(members.iter().map(|hung| status.time_s.seconds_since(hung.object.since_s))),
            format_count(threads as u64, "hung thread")
        )
    };
    let mut warnings: Vec<String> = group_by_key(all).into_iter().map(warning).collect();
    let unnamed = warnings.len().saturating_sub(MAX_HUNG_LINES);
    warnings.truncate(MAX_HUNG_LINES);
    if unnamed > 0 {
        let objects = format_count(unnamed as u64, "more object");
        warnings.push(format!("calls on {objects} hang; fanfs status --json lists them"));
    }
    let unlisted = |replica: &ReplicaStatus| replica.hung_objects - replica.hung.len();
    let more: Vec<_> =
        replicas.iter().filter(|replica| replica.hung_objects > replica.hung.len()).collect();
    if let Some(most) = more.iter().map(|replica| unlisted(replica)).max() {
        let objects = format_count(most as u64, "more object");
        let up_to = if more.len() == 1 { "" } else { "up to " };
        warnings.push(format!("{}: calls on {up_to}{objects} hang", name_list(&more)));
    }
    warnings
}

/// "5s", or "5s to 2m" if the replicas differ.
fn age_range(seconds: impl Iterator<Item = u64> + Clone) -> String {
    let text = |seconds| humantime::format_duration(Duration::from_secs(seconds)).to_string();
    let least = seconds.clone().min().unwrap_or(0);
    let most = seconds.max().unwrap_or(0);
    if least == most { text(most) } else { format!("{} to {}", text(least), text(most)) }
}

/// "r3", "r3, r4 and 5 more replicas".
fn name_list(replicas: &[&ReplicaStatus]) -> String {
    let names: Vec<&str> = replicas.iter().map(|replica| &*replica.name).collect();
    format_names(&names, "replica")
}

/// The items of each key. Keys are in the order of their first items.
fn group_by_key<K: PartialEq, T>(items: impl Iterator<Item = (K, T)>) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for (key, item) in items {
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, members)) => members.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;

    /// A volume of `count` healthy replicas.
    fn volume(count: usize) -> Status {
        let names: Vec<String> = (1..=count).map(|number| format!("r{number}")).collect();
        sample::status(names.iter().map(String::as_str))
    }

    #[test]
    fn healthy_replicas_have_no_warning() {
        let all = volume(64);
        assert!(replica_warnings(&all).is_empty() && service_failures(&all).is_empty());
        assert_eq!(differing_warning(&all.replicas), None);
    }

    #[test]
    fn replicas_with_the_same_cause_share_a_line() {
        let mut all = volume(64);
        for (age, replica) in all.replicas.iter_mut().skip(2).take(7).enumerate() {
            replica.health = HealthState::Ejected;
            replica.health_reason = HealthReason::Stalled;
            replica.health_since_s = sample::ago(5 + age as u64);
            replica.hung_threads = 1;
        }
        all.replicas[0].health = HealthState::Suspect;
        all.replicas[0].health_reason = HealthReason::Failed;
        assert_eq!(
            replica_warnings(&all),
            [
                "r1: a call failed, 5s ago",
                "r3, r4 and 5 more replicas: delivered nothing while other replicas did, \
                 5s to 11s ago; 7 hung threads",
            ]
        );
        assert_eq!(
            service_failures(&all),
            ["r3, r4 and 5 more replicas are ejected: \
              delivered nothing while other replicas did"]
        );
    }

    #[test]
    fn absent_replicas_share_a_line_although_their_paths_differ() {
        let mut all = volume(5);
        for replica in &mut all.replicas[1..] {
            replica.health = HealthState::Absent;
            let path = replica.path.display();
            replica.absence = Some(format!(
                "replica {} ({path}) is not a mount point; mount it: `mount {path}`",
                replica.name
            ));
        }
        assert_eq!(
            replica_warnings(&all),
            ["r2, r3 and 2 more replicas are absent: each is not a mount point; `fanfs check` \
              shows how to fix each; fanfs uses them again when they recover"]
        );
        assert_eq!(
            service_failures(&all),
            ["r2, r3 and 2 more replicas are absent: each is not a mount point"]
        );
        all.replicas.truncate(2);
        assert_eq!(
            replica_warnings(&all),
            [
                "replica r2 is absent: /mnt/r2 is not a mount point; mount it: `mount /mnt/r2`; fanfs \
              uses it again when it recovers"
            ]
        );
        assert_eq!(
            service_failures(&all),
            ["replica r2 is absent: /mnt/r2 is not a mount point; mount it: `mount /mnt/r2`"]
        );
    }

    #[test]
    fn an_object_that_hangs_on_several_replicas_takes_one_line() {
        let mut all = volume(3);
        for replica in &mut all.replicas[..2] {
            replica.hung =
                vec![HungObject { path: "a/b".to_owned(), threads: 2, since_s: sample::ago(60) }];
            replica.hung_objects = 1;
        }
        all.replicas[1].hung_objects = 4;
        assert_eq!(
            replica_warnings(&all),
            [
                "r1 and r2: calls on a/b have hung for 1m; 4 hung threads",
                "r2: calls on 3 more objects hang",
            ]
        );
    }

    #[test]
    fn many_hung_objects_take_few_lines() {
        let mut all = volume(1);
        let object = |number: u64| HungObject {
            path: format!("f{number}"),
            threads: 1,
            since_s: sample::ago(60),
        };
        all.replicas[0].hung = (0..16).map(object).collect();
        all.replicas[0].hung_objects = 20;
        let warnings = replica_warnings(&all);
        assert_eq!(warnings.len(), 6);
        assert_eq!(
            warnings[4..],
            [
                "calls on 12 more objects hang; fanfs status --json lists them",
                "r1: calls on 4 more objects hang"
            ]
        );
    }

    #[test]
    fn replicas_whose_data_differs_share_a_line() {
        let mut all = volume(3);
        all.replicas[1].counters.differing = 1;
        let one = "r2 is not read for 1 file: its data differs";
        assert_eq!(differing_warning(&all.replicas).unwrap(), one);
        all.replicas[2].counters.differing = 4;
        let two = "r2 and r3 are not read for up to 4 files each: their data differs";
        assert_eq!(differing_warning(&all.replicas).unwrap(), two);
    }
}
