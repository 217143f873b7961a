//! Colors in the output of commands.

use anstream::{AutoStream, ColorChoice};
use anstyle::AnsiColor;

/// Whether standard output shows colors: it is a terminal that can, and neither `NO_COLOR` nor
/// `CLICOLOR=0` is set.
pub(super) fn is_enabled() -> bool {
    AutoStream::choice(&std::io::stdout()) != ColorChoice::Never
}

/// `text` in `color`, or unchanged if colors are not enabled.
pub(super) fn paint(text: &str, color: AnsiColor, is_enabled: bool) -> String {
    if !is_enabled {
        return text.to_owned();
    }
    let style = color.on_default();
    format!("{style}{text}{style:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_color_ends_with_its_text() {
        assert_eq!(paint("ok", AnsiColor::Green, true), "\x1b[32mok\x1b[0m");
        assert_eq!(paint("?", AnsiColor::BrightBlack, true), "\x1b[90m?\x1b[0m");
        assert_eq!(paint("ok", AnsiColor::Green, false), "ok");
    }
}
