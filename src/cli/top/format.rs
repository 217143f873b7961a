//! Numbers as people read them, in few columns.

use bytesize::ByteSize;

/// "98.2 MiB".
pub(super) fn format_bytes(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// "98.2M": where there are few columns.
pub(super) fn format_bytes_short(bytes: u64) -> String {
    let text = ByteSize(bytes).display().iec_short().to_string();
    text.replace('i', "")
}

/// "850us", "12.4ms", "3.1s".
pub(super) fn format_micros(us: u64) -> String {
    match us {
        0..=999 => format!("{us}us"),
        1_000..=99_999 => format!("{:.1}ms", us as f64 / 1e3),
        100_000..=999_999 => format!("{}ms", us / 1000),
        _ => format!("{:.1}s", us as f64 / 1e6),
    }
}

/// "34%", from 0.34.
pub(super) fn format_percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

/// "0", "0.4", "12", "3.4k": how often something happens.
pub(super) fn format_frequency(times: f64) -> String {
    match times {
        ..0.05 => "0".to_owned(),
        ..9.95 => format!("{times:.1}"),
        ..9999.5 => format!("{times:.0}"),
        _ => format!("{:.1}k", times / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_short() {
        assert_eq!(
            [0, 850, 12_400, 850_000, 3_100_000].map(format_micros),
            ["0us", "850us", "12.4ms", "850ms", "3.1s"]
        );
        assert_eq!([0.0, 0.4, 12.3, 34_000.0].map(format_frequency), ["0", "0.4", "12", "34.0k"]);
        assert_eq!(format_bytes(98 << 20), "98.0 MiB");
        assert!(format_bytes_short(1023 << 20).len() <= 7, "{}", format_bytes_short(1023 << 20));
        assert_eq!(format_percent(0.336), "34%");
    }
}
