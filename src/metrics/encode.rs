//! Encodes metrics in the OpenMetrics or the Prometheus text format.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::MetricsSnapshot;
use super::definitions::{METRICS, Metric, MetricKind, Sample, Value};
use crate::telemetry::histogram::{BUCKET_BOUNDS_US, HistogramSnapshot};

/// The text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The Prometheus text format, 0.0.4.
    PrometheusText,
}

impl ExpositionFormat {
    /// Its media type.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::PrometheusText => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// All metrics of a volume.
pub fn encode_metrics(snapshot: &MetricsSnapshot, form: ExpositionFormat) -> String {
    let volume = snapshot.status.volume.clone();
    let mut registry = Registry::with_labels([("volume".into(), volume.into())].into_iter());
    let all =
        METRICS.iter().map(|metric| MetricSamples { metric, samples: metric.samples(snapshot) });
    let present = all.filter(|one| !one.samples.is_empty()).collect();
    registry.register_collector(Box::new(MetricsCollector(present)));
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    match form {
        ExpositionFormat::OpenMetrics => text,
        ExpositionFormat::PrometheusText => to_prometheus_text(&text),
    }
}

/// Every metric that has a value, with its values.
#[derive(Debug)]
struct MetricsCollector(Vec<MetricSamples>);

#[derive(Debug)]
struct MetricSamples {
    metric: &'static Metric,
    samples: Vec<Sample>,
}

impl Collector for MetricsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for MetricSamples { metric, samples } in &self.0 {
            let (kind, end) = match metric.kind() {
                MetricKind::Counter => (MetricType::Counter, "_total"),
                MetricKind::Gauge => (MetricType::Gauge, ""),
                MetricKind::Histogram => (MetricType::Histogram, ""),
            };
            let name = metric.name.strip_suffix(end).unwrap_or(metric.name);
            let units = [("_bytes", Unit::Bytes), ("_seconds", Unit::Seconds)];
            let unit = units.into_iter().find(|(end, _)| name.ends_with(end));
            let (name, unit) = match unit {
                Some((end, unit)) => (name.strip_suffix(end).unwrap_or(name), Some(unit)),
                None => (name, None),
            };
            let mut encoder = encoder.encode_descriptor(name, metric.help, unit.as_ref(), kind)?;
            for Sample { labels, value } in samples {
                encode_value(value, metric.kind(), encoder.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

fn encode_value(value: &Value, kind: MetricKind, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    match (value, kind) {
        (Value::Integer(value), MetricKind::Counter) => ConstCounter::new(*value).encode(encoder),
        (Value::Float(value), MetricKind::Counter) => ConstCounter::new(*value).encode(encoder),
        (Value::Integer(value), _) => {
            let value = i64::try_from(*value).unwrap_or(i64::MAX);
            ConstGauge::new(value).encode(encoder)
        }
        (Value::Float(value), _) => ConstGauge::new(*value).encode(encoder),
        (Value::Histogram(times), _) => encoder.encode_histogram::<NoLabelSet>(
            times.sum_s(),
            times.total(),
            &buckets(times),
            None,
        ),
    }
}

fn buckets(times: &HistogramSnapshot) -> Vec<(f64, u64)> {
    let bounds = BUCKET_BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
    bounds.zip(times.bucket_counts()).collect()
}

/// Converts OpenMetrics text to the older Prometheus format: counters are declared by their full
/// names, and there are no units and no end marker.
fn to_prometheus_text(text: &str) -> String {
    let mut classic = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                let kind = lines.peek().and_then(|line| line.rsplit(' ').next());
                let end = if kind == Some("counter") { "_total" } else { "" };
                classic.push_str(&format!("# HELP {name}{end} {help}\n"));
            }
            ["#", "TYPE", name, "counter"] => {
                classic.push_str(&format!("# TYPE {name}_total counter\n"));
            }
            ["#", "UNIT", ..] | ["#", "EOF"] => {}
            _ => {
                classic.push_str(line);
                classic.push('\n');
            }
        }
    }
    classic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classic_format_has_the_same_content() {
        let open = "# HELP a_bytes A size\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                    a_bytes_total{volume=\"v\"} 1\n# HELP b Other\n# TYPE b gauge\nb 2\n# EOF\n";
        assert_eq!(
            to_prometheus_text(open),
            "# HELP a_bytes_total A size\n# TYPE a_bytes_total counter\n\
             a_bytes_total{volume=\"v\"} 1\n# HELP b Other\n# TYPE b gauge\nb 2\n"
        );
    }
}
