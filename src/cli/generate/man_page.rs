//! Builds one man page: sections of prose, lists and commands.
//!
//! The texts are help texts and doc comments. Names between backticks become bold, and `roff`
//! escapes everything that troff would interpret.

use roff::{Inline, Roff, bold, roman};

/// A page under construction.
pub(super) struct ManPage {
    text: String,
    /// Whether the next paragraph is the first of its section, which needs no `.PP`.
    at_start: bool,
}

impl ManPage {
    /// A page of this name and section of the manual.
    pub(super) fn new(name: &str, section: &str) -> Self {
        let version = format!("fanfs {}", env!("CARGO_PKG_VERSION"));
        // No date: each build would generate another page. The line is written here because
        // `roff` omits empty arguments.
        let title = format!(".TH {name} {section} \"\" \"{version}\" \"fanfs manual\"\n");
        Self { text: Roff::new().render() + &title, at_start: true }
    }

    /// The text of the page.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn add(&mut self, roff: &Roff) {
        self.add_text(&roff.render());
    }

    /// Adds rendered troff text.
    pub(super) fn add_text(&mut self, text: &str) {
        // Each `roff` document begins with the definition of an apostrophe, which the page has
        // already.
        let prelude = Roff::new().render();
        for line in text.strip_prefix(&prelude).unwrap_or(text).lines() {
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
        self.at_start = false;
    }

    /// Begins a section.
    pub(super) fn section(&mut self, title: &str) {
        let mut roff = Roff::new();
        roff.control("SH", [title]);
        self.add(&roff);
        self.at_start = true;
    }

    /// A paragraph.
    pub(super) fn prose(&mut self, text: &str) {
        let mut roff = Roff::new();
        if !self.at_start {
            roff.control("PP", []);
        }
        roff.text(inlines(text));
        self.add(&roff);
    }

    /// A term and its explanation, in one or more paragraphs.
    pub(super) fn item(&mut self, term: &str, paragraphs: &[&str]) {
        let mut roff = Roff::new();
        roff.control("TP", []);
        roff.text([bold(term)]);
        for (i, paragraph) in paragraphs.iter().enumerate() {
            if i > 0 {
                roff.control("br", []);
            }
            roff.text(inlines(paragraph));
        }
        self.add(&roff);
    }

    /// An entry of a list.
    pub(super) fn bullet(&mut self, text: &str) {
        let mut roff = Roff::new();
        // `roff` escapes its arguments, so the bullet cannot be a troff escape.
        roff.control("IP", ["-", "2"]);
        roff.text(inlines(text));
        self.add(&roff);
    }

    /// Lines without filling.
    pub(super) fn lines(&mut self, lines: &[&str]) {
        let mut roff = Roff::new();
        if !self.at_start {
            roff.control("PP", []);
        }
        roff.control("nf", []);
        for line in lines {
            roff.text([roman(*line)]);
        }
        roff.control("fi", []);
        self.add(&roff);
    }
}

/// `text` with the parts between backticks in bold.
fn inlines(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    parts.map(|(i, part)| if i % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troff_control_text_is_escaped() {
        let mut page = ManPage::new("x", "1");
        page.section("NAME");
        page.prose(".TH is `-o` and a \\ back");
        page.prose("more");
        let text = page.finish();
        assert!(
            text.ends_with(".SH NAME\n\\&.TH is \\fB\\-o\\fR and a \\\\ back\n.PP\nmore\n"),
            "{text}"
        );
    }
}
