//! Numbers for people: sizes, rates, times, shares and counts. Pure.
//!
//! All commands use these functions, so a figure looks the same everywhere. Narrow columns have a
//! separate short form.

use bytesize::ByteSize;

const BYTES_PER_MIB: f64 = (1 << 20) as f64;

/// Bytes as MiB.
pub fn to_mib(bytes: u64) -> f64 {
    bytes as f64 / BYTES_PER_MIB
}

/// Bytes per second as MiB per second.
pub fn to_mib_per_second(rate: f64) -> f64 {
    rate / BYTES_PER_MIB
}

/// "98.2 MiB".
pub fn format_bytes(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// "64 KiB", "1.5 GiB": for sizes that are mostly whole in a unit.
pub fn format_bytes_rounded(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift {
            let value = bytes as f64 / (1_u64 << shift) as f64;
            let digits = usize::from(value.fract() > 0.05 && value.fract() < 0.95);
            return format!("{value:.digits$} {unit}");
        }
    }
    format!("{bytes} B")
}

/// "1250.0 MiB/s", from bytes per second. All rates have this unit, so they can be compared.
pub fn format_mib_rate(rate: f64) -> String {
    format!("{:.1} MiB/s", to_mib_per_second(rate))
}

/// "850 us", "12.4 ms", "3.1 s".
pub fn format_micros(us: u64) -> String {
    match us {
        0..=999 => format!("{us} us"),
        1_000..=99_949 => format!("{:.1} ms", us as f64 / 1e3),
        99_950..=999_499 => format!("{:.0} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// "850us", "12.4ms", "3.1s": the same for a narrow column.
pub fn format_micros_short(us: u64) -> String {
    format_micros(us).replace(' ', "")
}

/// "34%", from 0.34.
pub fn format_percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// "0.31%": for shares that should be near zero.
pub fn format_percent_precise(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// "0", "0.4", "12", "34.0k": a frequency.
pub fn format_frequency(times: f64) -> String {
    match times {
        ..0.05 => "0".to_owned(),
        ..9.95 => format!("{times:.1}"),
        ..9999.5 => format!("{times:.0}"),
        _ => format!("{:.1}k", times / 1e3),
    }
}

/// "1 file", "2 files".
pub fn format_count(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// "r3", "r3, r4 and r5", "r3, r4 and 5 more replicas".
pub fn format_names(names: &[&str], noun: &str) -> String {
    const MAX_NAMED: usize = 3;

    let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    if names.len() > MAX_NAMED {
        let more = names.split_off(MAX_NAMED - 1).len();
        names.push(format_count(more as u64, &format!("more {noun}")));
    }
    let last = names.pop().unwrap_or_default();
    if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) }
}

/// `text` in lines of at most `width` characters, cut between words. Only a longer word makes a
/// longer line.
pub fn wrap_words(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(line.trim_end_matches(' ').to_owned());
            line.clear();
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    if used > 0 {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_short() {
        assert_eq!(
            [0, 850, 12_400, 99_960, 850_000, 999_600].map(format_micros),
            ["0 us", "850 us", "12.4 ms", "100 ms", "850 ms", "1.0 s"]
        );
        assert_eq!([850, 3_100_000].map(format_micros_short), ["850us", "3.1s"]);
        assert_eq!([0.0, 0.4, 12.3, 34_000.0].map(format_frequency), ["0", "0.4", "12", "34.0k"]);
        assert_eq!(format_bytes(98 << 20), "98.0 MiB");
        assert_eq!(format_percent(0.336), "34%");
    }

    #[test]
    fn whole_sizes_have_no_decimals() {
        assert_eq!(format_bytes_rounded(1 << 20), "1 MiB");
        assert_eq!(format_bytes_rounded(65536), "64 KiB");
        assert_eq!(format_bytes_rounded(3 << 29), "1.5 GiB");
        assert_eq!(format_bytes_rounded(100), "100 B");
    }

    #[test]
    fn a_count_of_one_uses_the_singular() {
        assert_eq!([0, 1, 2].map(|n| format_count(n, "file")), ["0 files", "1 file", "2 files"]);
    }

    #[test]
    fn long_lists_of_names_end_with_a_count() {
        let names: Vec<String> = (3..10).map(|number| format!("r{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let list = |count| format_names(&names[..count], "replica");
        assert_eq!([0, 1, 2, 3].map(list), ["", "r3", "r3 and r4", "r3, r4 and r5"]);
        assert_eq!(list(7), "r3, r4 and 5 more replicas");
    }
}
