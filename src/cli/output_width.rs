//! The width of the text that commands print.

use crate::format::wrap_words;

const MIN_WIDTH: usize = 40;
const MAX_WIDTH: usize = 100;

/// The least room for text beside its label.
const MIN_TEXT_WIDTH: usize = 20;

/// The width in columns, 40 to 100: that of `$COLUMNS`, else of the terminal, else 100.
pub(super) fn output_width() -> usize {
    let columns = std::env::var("COLUMNS").ok();
    // Fails if standard output is not a terminal.
    let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    choose_width(columns.as_deref(), terminal.map(|size| size.ws_col))
}

fn choose_width(columns: Option<&str>, terminal: Option<u16>) -> usize {
    let is_known = |width: &u16| *width > 0;
    let columns = columns.and_then(|text| text.parse::<u16>().ok()).filter(is_known);
    let width = columns.or(terminal.filter(is_known));
    width.map_or(MAX_WIDTH, usize::from).clamp(MIN_WIDTH, MAX_WIDTH)
}

/// `text` that begins at column `indent`, cut between words into lines that end at `width` and
/// begin at the same column.
pub(super) fn wrap_indented(text: &str, indent: usize, width: usize) -> String {
    let lines = wrap_words(text, width.saturating_sub(indent).max(MIN_TEXT_WIDTH));
    lines.join(&format!("\n{:indent$}", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_is_40_to_100_columns() {
        assert_eq!(choose_width(None, None), 100);
        assert_eq!(choose_width(None, Some(72)), 72);
        assert_eq!(choose_width(Some("60"), Some(72)), 60);
        assert_eq!([Some(10), Some(0), Some(250)].map(|n| choose_width(None, n)), [40, 100, 100]);
        assert_eq!([Some("x"), Some("0"), Some("")].map(|n| choose_width(n, Some(72))), [72; 3]);
    }

    #[test]
    fn continuation_lines_begin_under_the_text() {
        let text = wrap_indented("one two  three", 12, 22);
        assert_eq!(text, "one two  three", "there are always 20 columns for the text");
        let text = wrap_indented("replica n2 is not a mount point", 12, 36);
        assert_eq!(text, "replica n2 is not a\n            mount point");
    }
}
