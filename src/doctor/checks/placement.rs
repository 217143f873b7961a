//! Rules about placement, from what the volume's daemon has seen.

use super::{CheckOutcome, CheckStatus, FindingText, RawFinding, replicas_text};
use crate::doctor::facts::{DoctorFacts, PlacementFacts};
use crate::format::{format_bytes, format_count, format_percent};

/// Fewer bytes say nothing about how soon answers come.
const MIN_BYTES: u64 = 256 << 20;

/// A share of bytes that were read before an answer which makes a provider too slow.
const LATE_SHARE: f64 = 0.2;

/// Fewer answers may be about files that a node happens not to hold.
const MIN_ANSWERS: u64 = 4;

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
                        "the placement provider {provider} does not answer: reads go to any \
                             replica"
                    ),
                    failing.clone(),
                ),
                "run the provider's command by hand, as the user of the daemon".to_owned(),
            ));
        }
        let share = placement.bytes_unknown as f64 / placement.bytes.max(1) as f64;
        let is_late = placement.bytes >= MIN_BYTES && share >= LATE_SHARE;
        is_late.then(|| {
            warning(
                Vec::new(),
                FindingText::new(
                    format!(
                        "{} of the bytes were read before {provider} had answered",
                        format_percent(share)
                    ),
                    format!(
                        "{} of {}; {}, {} ms each on average (fanfs status)",
                        format_bytes(placement.bytes_unknown),
                        format_bytes(placement.bytes),
                        format_count(placement.answers, "answer"),
                        placement.answer_ms
                    ),
                ),
                "run the provider's command nearer to the cluster's service, or turn placement off \
                 for files that are read faster than that"
                    .to_owned(),
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
        (placement.answers >= MIN_ANSWERS && !unnamed.is_empty()).then(|| {
            let text = FindingText::new(
                format!(
                    "{}: no chunk is on the node, so all reads there cross the network twice",
                    replicas_text(facts, &unnamed)
                ),
                format!("none of {} names it", format_count(placement.answers, "answer")),
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
