//! The rule about the errors that `fanfs check` reports.

use super::{CheckOutcome, CheckStatus, FindingText, RawFinding, replica_share, replicas_text};
use crate::doctor::facts::DoctorFacts;
use crate::volume::shell_word;

/// Errors that keep replicas out of service are one finding, and errors for which fanfs refuses to
/// mount the volume are another: they have different costs.
pub(super) fn reported(facts: &DoctorFacts) -> CheckOutcome {
    let Some(name) = &facts.volume else { return CheckOutcome::NotApplicable };
    let file = shell_word(facts.source.as_deref().unwrap_or(name));
    let judge = |is_fatal: bool| {
        let mut replicas: Vec<usize> = Vec::new();
        let mut texts = Vec::new();
        for (affected, text, _) in facts.refused.iter().filter(|(.., fatal)| *fatal == is_fatal) {
            replicas.extend_from_slice(affected);
            texts.push(text.as_str());
        }
        replicas.sort_unstable();
        replicas.dedup();
        let errors = match texts.len() {
            0 => return None,
            1 => "an error",
            _ => "errors",
        };
        let affected = replicas_text(facts, &replicas);
        let reported = format!("fanfs check reports {errors} for {affected}");
        Some(RawFinding {
            status: CheckStatus::Bad,
            cost: match is_fatal {
                true => 1.0,
                false => replicas.len() as f64 * replica_share(facts),
            },
            text: FindingText::new(
                match is_fatal {
                    true => format!("fanfs refuses to mount this volume: {reported}"),
                    false => reported,
                },
                texts.join("; "),
            ),
            remedy: format!("correct what fanfs check reports, then run fanfs check {file}"),
            replicas,
        })
    };
    CheckOutcome::Checked([true, false].into_iter().filter_map(judge).collect())
}
