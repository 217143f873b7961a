//! Rules about measured rates.

use super::{CheckOutcome, CheckStatus, FindingText, RawFinding, replicas_text};
use crate::doctor::facts::{DoctorFacts, MeasuredRates, NetworkInterface, RateMeasurement};
use crate::format::{format_mib_rate, format_percent};

/// A replica below this fraction of the others' median is slow. On busy machines and networks,
/// rates differ by a quarter from one second to the next, but not by half.
const SLOW_RATE_SHARE: f64 = 0.5;
const VERY_SLOW_RATE_SHARE: f64 = 0.25;

/// If the rate of all together is below this fraction of the sum of their rates alone, they share a
/// bottleneck. Three rate-limited replicas reach 0.95 and more in the lab.
const SHARED_BOTTLENECK_SHARE: f64 = 0.75;

/// If the rate of all together is below this multiple of the best alone, reading all gains nothing.
const MIN_GAIN: f64 = 1.2;

/// A latency above both this multiple of the others' median and this margin means a different path
/// or a busy server. A busy machine or a throttle can add a clock tick of up to 4 ms.
const OUTLIER_FACTOR: f64 = 4.0;
const OUTLIER_MARGIN_MS: f64 = 5.0;

/// Whether a latency is an outlier compared with the others' median, both in ms.
pub(super) fn is_latency_outlier(mine: f64, others: f64) -> bool {
    mine > OUTLIER_FACTOR * others && mine > others + OUTLIER_MARGIN_MS
}

/// The share of a full link that carries payload: TCP and NFS take 6 % of 1500 bytes, and the rest
/// is a margin.
const FULL_LINK_SHARE: f64 = 0.85;

/// With less idle time, the replicas share the CPUs as their bottleneck.
const MIN_IDLE_SHARE: f64 = 0.1;

fn measured_rates(facts: &DoctorFacts) -> Result<&MeasuredRates, CheckOutcome> {
    let measured = facts.measured.as_ref().ok_or(CheckOutcome::NotApplicable)?;
    match &measured.failed {
        Some(why) => Err(CheckOutcome::Unknown(why.clone())),
        None => Ok(measured),
    }
}

pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    // For an even number of values, the mean of the middle two.
    Some((values.get(n.checked_sub(1)? / 2)? + values.get(n / 2)?) / 2.0)
}

/// The median of the other replicas' values.
fn median_of_others(
    measured: &MeasuredRates,
    i: usize,
    of: fn(&RateMeasurement) -> Option<f64>,
) -> Option<f64> {
    let others = measured.alone.iter().enumerate().filter(|(j, _)| *j != i);
    median(others.filter_map(|(_, sample)| of(sample)).collect())
}

const TOO_LITTLE_READ: &str =
    "too little data was read to compute a rate; name a larger file with --file";

pub(super) fn slow(facts: &DoctorFacts) -> CheckOutcome {
    let measured = match measured_rates(facts) {
        Ok(measured) => measured,
        Err(outcome) => return outcome,
    };
    let answers = |i: &usize| facts.replicas[*i].state == "ok";
    let mut found = Vec::new();
    for i in (0..measured.alone.len()).filter(answers) {
        found.extend(unreadable(facts, measured, i).or_else(|| slower(facts, measured, i)));
    }
    let is_unknown = |i: usize| measured.alone[i].rate.is_none();
    if found.is_empty() && (0..measured.alone.len()).filter(answers).any(is_unknown) {
        return CheckOutcome::Unknown(TOO_LITTLE_READ.to_owned());
    }
    CheckOutcome::Checked(found)
}

/// The finding about a replica that failed or delivered nothing.
fn unreadable(facts: &DoctorFacts, measured: &MeasuredRates, i: usize) -> Option<RawFinding> {
    let sample = &measured.alone[i];
    let name = &facts.replicas[i].name;
    let file = &measured.file;
    let (text, remedy) = if let Some(error) = &sample.error {
        (
            FindingText::new(
                format!("replica {name} cannot read the test file"),
                format!("reading {file} failed: {error}"),
            ),
            "name a file that all replicas have, with --file; or repair this replica's copy",
        )
    } else if sample.silent {
        (
            FindingText::new(
                format!("replica {name} delivers no data"),
                format!("it delivered nothing of {file} in {} s", measured.seconds),
            ),
            "check its server and its disks for hangs: journalctl -k",
        )
    } else {
        return None;
    };
    Some(RawFinding {
        status: CheckStatus::Bad,
        replicas: vec![i],
        cost: super::replica_share(facts),
        text,
        remedy: remedy.to_owned(),
    })
}

/// The finding about a replica that is far slower than the others.
fn slower(facts: &DoctorFacts, measured: &MeasuredRates, i: usize) -> Option<RawFinding> {
    let rate = measured.alone[i].rate?;
    let other = median_of_others(measured, i, |sample| sample.rate)?;
    if rate >= SLOW_RATE_SHARE * other {
        return None;
    }
    let all: f64 = measured.alone.iter().filter_map(|sample| sample.rate).sum();
    let is_very_slow = rate < VERY_SLOW_RATE_SHARE * other;
    Some(RawFinding {
        status: if is_very_slow { CheckStatus::Bad } else { CheckStatus::Warn },
        replicas: vec![i],
        cost: (other - rate) / (all - rate + other),
        text: FindingText::new(
            format!("replica {} is much slower than the others", facts.replicas[i].name),
            format!(
                "it delivers {} alone, the others {} (median)",
                format_mib_rate(rate),
                format_mib_rate(other)
            ),
        ),
        remedy: "compare it with the others: mount options (see the table above), link (ethtool), \
                 server load and disks (nfsiostat 1 here, iostat -x 1 on the server)"
            .to_owned(),
    })
}

pub(super) fn latency(facts: &DoctorFacts) -> CheckOutcome {
    let measured = match measured_rates(facts) {
        Ok(measured) => measured,
        Err(outcome) => return outcome,
    };
    let rule = |(i, sample): (usize, &RateMeasurement)| {
        let (mine, other) =
            sample.latency_ms.zip(median_of_others(measured, i, |s| s.latency_ms))?;
        is_latency_outlier(mine, other).then(|| RawFinding {
            status: CheckStatus::Warn,
            replicas: vec![i],
            cost: 0.0,
            text: FindingText::new(
                format!("replica {} answers small reads late", facts.replicas[i].name),
                format!("a read of 4 KiB takes {mine:.1} ms (median), on the others {other:.1} ms"),
            ),
            remedy:
                "check the network path (traceroute, ping) and the server's load; [[affinity]] \
                     keeps directories of small files on the other replicas"
                    .to_owned(),
        })
    };
    CheckOutcome::Checked(measured.alone.iter().enumerate().filter_map(rule).collect())
}

/// The rate of all together divided by the best alone, if at least two replicas were read.
pub(super) fn measured_gain(facts: &DoctorFacts) -> Option<f64> {
    let measured = facts.measured.as_ref()?;
    let read = |sample: &&RateMeasurement| sample.rate.is_some();
    if measured.alone.iter().filter(read).count() < 2 {
        return None;
    }
    let best = measured.alone.iter().filter_map(|sample| sample.rate).reduce(f64::max)?;
    Some(measured.together.rate? / best)
}

pub(super) fn together(facts: &DoctorFacts) -> CheckOutcome {
    let measured = match measured_rates(facts) {
        Ok(measured) => measured,
        Err(outcome) => return outcome,
    };
    let reading = measured.alone.iter().enumerate().filter(|(_, sample)| sample.rate.is_some());
    let readable: Vec<usize> = reading.map(|(i, _)| i).collect();
    if facts.replicas.len() < 2 {
        return CheckOutcome::NotApplicable;
    }
    let (Some(together), Some(gain), 2..) =
        (measured.together.rate, measured_gain(facts), readable.len())
    else {
        return CheckOutcome::Unknown(TOO_LITTLE_READ.to_owned());
    };
    let sum: f64 = measured.alone.iter().filter_map(|sample| sample.rate).sum();
    if together >= SHARED_BOTTLENECK_SHARE * sum {
        return CheckOutcome::Checked(Vec::new());
    }
    let nothing = gain < MIN_GAIN;
    let bottleneck = find_bottleneck(facts, together, &readable);
    let problem = if nothing {
        "reading from all replicas is hardly faster than from the best one".to_owned()
    } else {
        let without = gain * sum / together;
        format!(
            "the replicas share a bottleneck: the speedup over the best replica is {gain:.1}x, not \
             {without:.1}x"
        )
    };
    let evidence = format!(
        "{} deliver {} together; the sum of their rates alone is {}; {}",
        replicas_text(facts, &readable),
        format_mib_rate(together),
        format_mib_rate(sum),
        bottleneck.text
    );
    CheckOutcome::Checked(vec![RawFinding {
        status: if nothing { CheckStatus::Bad } else { CheckStatus::Warn },
        cost: 1.0 - together / sum,
        text: FindingText::new(problem, evidence),
        remedy: bottleneck.remedy,
        replicas: readable,
    }])
}

/// The bottleneck that replicas share.
struct Bottleneck {
    text: String,
    remedy: String,
}

impl Bottleneck {
    fn new(text: String, remedy: &str) -> Self {
        Self { text, remedy: remedy.to_owned() }
    }
}

/// Finds the bottleneck that `replicas` share, if the facts show it.
fn find_bottleneck(facts: &DoctorFacts, together: f64, replicas: &[usize]) -> Bottleneck {
    let full = |interface: &&NetworkInterface| {
        let goes_by_it = |i: &usize| {
            let route = facts.replicas[*i].route.as_ref();
            route.and_then(|route| route.interface.as_ref()) == Some(&interface.name)
        };
        if !replicas.iter().all(goes_by_it) {
            return false;
        }
        let mbit = interface.speed_mbit.filter(|_| !interface.is_virtual);
        mbit.is_some_and(|mbit| together >= FULL_LINK_SHARE * mbit as f64 * 1e6 / 8.0)
    };
    if let Some(link) = facts.interfaces.iter().find(full) {
        let mbit = link.speed_mbit.unwrap_or_default();
        let what = format!("the interface {} is full at {mbit} Mbit/s", link.name);
        let remedy = "use a faster interface, a bond, or replicas behind another interface";
        return Bottleneck::new(what, remedy);
    }
    if !facts.one_connection.is_empty() || !facts.one_file_system.is_empty() {
        let what = "some of them share a connection or a device".to_owned();
        return Bottleneck::new(what, "see the findings nfs.connection and replica.device");
    }
    if let Some(idle) =
        facts.measured.as_ref().and_then(|m| m.idle).filter(|idle| *idle < MIN_IDLE_SHARE)
    {
        let what = format!("this machine's CPUs were only {} idle", format_percent(idle));
        let remedy = "measure again when this machine is less busy; more cores read faster";
        return Bottleneck::new(what, remedy);
    }
    let what =
        "the cause may be one copy of the data behind several gateways (replication 1), one \
                server, or one link that they share"
            .to_owned();
    let remedy = "add copies of the data (fanfs explain FILE shows where chunks are), use gateways \
                  on the nodes that hold them, or a faster link; iperf3 to two servers at once \
                  shows whether the link or the disks limit";
    Bottleneck::new(what, remedy)
}
