//! Rules about placement, from what the volume's daemon has seen.

use super::{CheckOutcome, CheckStatus, FindingText, RawFinding, replicas_text};
use crate::doctor::facts::{DoctorFacts, PlacementFacts};
use crate::format::format_count;

/// A mean time of answers, milliseconds, in which much of a file is read: 100 MB at 200 MB/s.
const SLOW_ANSWER_MS: u64 = 500;

/// Located files for each replica: of fewer files, a node may happen to hold none.
const MIN_FILES_PER_REPLICA: u64 = 8;

fn check_placement(
    facts: &DoctorFacts,
    rule: impl Fn(&PlacementFacts) -> Option<RawFinding>,
) -> CheckOutcome {
    match &facts.placement {
        None => CheckOutcome::NotApplicable,
        Some(placement) => CheckOutcome::Checked(rule(placement).into_iter().collect()),
    }
}

fn warning(replicas: Vec<usize>, text: FindingText, remedy: String) -> RawFinding {
    RawFinding { status: CheckStatus::Warn, replicas, cost: 0.0, text, remedy }
}

/// Whether the provider answers, and soon enough.
pub(super) fn answers(facts: &DoctorFacts) -> CheckOutcome {
    check_placement(facts, |placement| {
        let provider = &placement.provider;
        if let Some(failing) = &placement.failing {
            return Some(warning(
                Vec::new(),
                FindingText::new(
                    format!(
                        "the placement provider {provider} does not answer: files without an earlier \
                         answer are read from any replica"
                    ),
                    failing.clone(),
                ),
                "run the provider's command by hand, as the user of the daemon".to_owned(),
            ));
        }
        (placement.answer_ms >= SLOW_ANSWER_MS).then(|| {
            warning(
                Vec::new(),
                FindingText::new(
                    format!("{provider} answers slowly: the first part of a file is read before"),
                    format!("{} ms on average (fanfs status --json)", placement.answer_ms),
                ),
                "run the provider's command nearer to the cluster's service".to_owned(),
            )
        })
    })
}

/// Names in the answers that match no replica.
pub(super) fn names(facts: &DoctorFacts) -> CheckOutcome {
    check_placement(facts, |placement| {
        let names = placement.unmatched.join(", ");
        (!names.is_empty()).then(|| {
            warning(
                Vec::new(),
                FindingText::new(
                    "the provider names nodes that no replica is on",
                    format!("{names} (the last answer of {})", placement.provider),
                ),
                "if one of them has a gateway, add that name to `aliases` of its replica, then \
                 fanfs reload; otherwise a replica on it would read its chunks locally"
                    .to_owned(),
            )
        })
    })
}

/// Replicas on nodes that hold none of the chunks read so far.
pub(super) fn storage(facts: &DoctorFacts) -> CheckOutcome {
    check_placement(facts, |placement| {
        let is_unnamed = |i: &usize| placement.unnamed.contains(&facts.replicas[*i].name);
        let unnamed: Vec<usize> = (0..facts.replicas.len()).filter(is_unnamed).collect();
        let enough = MIN_FILES_PER_REPLICA * facts.replicas.len() as u64;
        (placement.located >= enough && !unnamed.is_empty()).then(|| {
            let text = FindingText::new(
                format!(
                    "{}: no chunk is on the node, so all reads there cross the network twice",
                    replicas_text(facts, &unnamed)
                ),
                format!("no answer about {} names it", format_count(placement.located, "file")),
            );
            let remedy = "if the node stores data under another name, add that to `aliases`; \
                          otherwise put the gateway on a storage node"
                .to_owned();
            warning(unnamed, text, remedy)
        })
    })
}

/// Ceph's primary affinity, which moves reads away from nodes.
pub(super) fn primaries(facts: &DoctorFacts) -> CheckOutcome {
    check_placement(facts, |placement| {
        (!placement.notes.is_empty()).then(|| {
            warning(
                Vec::new(),
                FindingText::new(
                    "some nodes serve fewer reads than they hold copies",
                    placement.notes.join("; "),
                ),
                "ceph osd primary-affinity osd.N 1".to_owned(),
            )
        })
    })
}
