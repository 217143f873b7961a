//! When and where a report was measured.

use std::path::Path;
use std::time::{Duration, SystemTime};

/// This machine's host name.
pub(super) fn host_name() -> String {
    read_kernel_value("hostname")
}

/// The kernel, as `uname -sr` prints it.
pub(super) fn kernel() -> String {
    format!("{} {}", read_kernel_value("ostype"), read_kernel_value("osrelease"))
}

/// The date and time in UTC (RFC 3339) of a moment that has passed by `ago`.
pub(super) fn date_before(ago: Duration) -> String {
    let epoch = SystemTime::UNIX_EPOCH;
    let then = SystemTime::now().checked_sub(ago).unwrap_or(epoch);
    // humantime formats no time before the epoch; a wrong clock may show one.
    humantime::format_rfc3339_seconds(then.max(epoch)).to_string()
}

fn read_kernel_value(name: &str) -> String {
    let value = std::fs::read_to_string(Path::new("/proc/sys/kernel").join(name));
    value.map_or_else(|_| "unknown".to_owned(), |value| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_has_a_date_a_host_and_a_kernel() {
        let date = date_before(Duration::from_secs(60));
        assert!(date.len() == 20 && date.starts_with("20") && date.ends_with('Z'), "{date}");
        assert!(date_before(Duration::MAX).starts_with("1970-01-01T00:00:00"));
        assert!(kernel().starts_with("Linux "), "{}", kernel());
        assert_ne!(host_name(), "");
    }
}
