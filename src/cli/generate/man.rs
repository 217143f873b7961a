//! fanfs(1) and a page for each command, generated from the command line's definition.
//!
//! clap_mangen renders synopsis and options. The text after a command's help is split into parts:
//! lines that begin with `  fanfs ` are examples, lines that begin with `  - ` are a list, and a
//! paragraph that begins with `Exit status:` becomes that section. So a new command gets a
//! complete page from its help.

use clap::Command;
use clap_mangen::Man;

use super::man_page::ManPage;
use super::{GeneratedFile, helper_page, page_sections, volume_page};
use crate::cli::EXIT_STATUS;

/// The description of fanfs on its page, after the first line of the help.
const DESCRIPTION: &[&str] = &[
    "A `volume` is one configuration file, one mount point, and a set of `replicas`: directories \
     where the same data is mounted. Replicas are NFS mounts of one cluster through several \
     gateways, NFS mounts of one filer through several addresses, or independent copies of a \
     tree. fanfs mounts the volume with FUSE. It divides each file into segments, and reads them \
     from all replicas at once, more of them from faster replicas. It leaves out a replica that \
     fails, hangs or shows another version of the file.",
    "A VOLUME argument is the NAME of `/etc/fanfs/NAME.toml`, the path of a configuration file \
     (see fanfs.toml(5)), or the volume's mount point. A word without `/` is a NAME first.",
];

/// All pages, with their paths relative to the directory of the manual.
pub(super) fn pages(root: Command) -> Vec<GeneratedFile> {
    let page = |path: &str, text| GeneratedFile { path: path.to_owned(), text };
    let mut pages = vec![page("man1/fanfs.1", main_page(&root))];
    for command in visible_commands(&root) {
        let name = display_name(command);
        pages.push(page(&format!("man1/{name}.1"), command_page(&root, command)));
    }
    pages.push(page("man5/fanfs.toml.5", volume_page::page()));
    pages.push(page("man8/mount.fanfs.8", helper_page::page()));
    pages
}

fn visible_commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

/// The name of a command's page, such as `fanfs-mount`.
fn display_name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn about(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    about.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn main_page(root: &Command) -> String {
    let mut page = ManPage::new("fanfs", "1");
    page.section("NAME");
    page.prose(&format!("fanfs - {}", about(root).trim_end_matches('.')));
    page.section("SYNOPSIS");
    page.prose("`fanfs` COMMAND [OPTIONS]");
    page.prose("`fanfs` COMMAND `--help`");
    page.section("DESCRIPTION");
    for paragraph in DESCRIPTION {
        page.prose(paragraph);
    }
    page.section("COMMANDS");
    for command in visible_commands(root) {
        page.item(&format!("{}(1)", display_name(command)), &[&about(command)]);
    }
    let help = after_help(root);
    let see = visible_commands(root).map(display_name).collect::<Vec<_>>();
    page.section("EXIT STATUS");
    for (status, text) in EXIT_STATUS {
        page.item(&status.to_string(), &[text]);
    }
    add_page_sections(&mut page, &parse_examples(&help), "fanfs", &see);
    page.finish()
}

fn command_page(root: &Command, command: &Command) -> String {
    let name = display_name(command);
    let man = Man::new(command.clone());
    let mut page = ManPage::new(&name, "1");
    page.section("NAME");
    page.prose(&format!("{name} - {}", about(command)));
    page.section("SYNOPSIS");
    page.add_text(&strip_heading(|text| man.render_synopsis_section(text)));
    page.section("DESCRIPTION");
    page.prose(&format!("{}.", about(command)));
    let help = after_help(command);
    add_description(&mut page, &help);
    if has_arguments(command) {
        page.section("OPTIONS");
        page.add_text(&strip_heading(|text| man.render_options_section(text)));
    }
    for inner in visible_commands(command) {
        let man = Man::new(inner.clone());
        page.section(&inner.get_bin_name().unwrap_or(inner.get_name()).to_uppercase());
        page.prose(&format!("{}.", about(inner)));
        page.add_text(".PP\n");
        page.add_text(&strip_heading(|text| man.render_synopsis_section(text)));
        if has_arguments(inner) {
            page.add_text(&strip_heading(|text| man.render_options_section(text)));
        }
        add_description(&mut page, &after_help(inner));
    }
    page.section("EXIT STATUS");
    match help.iter().find_map(exit_status) {
        Some(text) => page.prose(text),
        None => {
            let of_all = EXIT_STATUS.iter().filter(|(status, _)| *status <= 2);
            let of_all: Vec<_> = of_all.map(|(status, text)| format!("{status} {text}")).collect();
            page.prose(&format!("{}.", of_all.join(", ")));
        }
    }
    let start = format!("fanfs {}", command.get_name());
    let of_it = |example: &Example| {
        let rest = example.command.strip_prefix(&start);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let mut shown: Vec<Example> =
        parse_examples(&after_help(root)).into_iter().filter(of_it).collect();
    shown.extend(parse_examples(&help));
    add_page_sections(&mut page, &shown, &name, &[]);
    page.finish()
}

/// Adds the last sections, which all pages have.
fn add_page_sections(page: &mut ManPage, examples: &[Example], own: &str, see: &[String]) {
    page.section("ENVIRONMENT");
    for (name, text) in page_sections::ENVIRONMENT {
        page.item(name, &[text]);
    }
    page.section("FILES");
    for entry in page_sections::file_entries() {
        page.item(&entry.path, &[entry.purpose]);
    }
    if !examples.is_empty() {
        page.section("EXAMPLES");
        for example in examples {
            match &*example.comment {
                "" => page.lines(&[&example.command]),
                comment => page.item(&example.command, &[comment]),
            }
        }
    }
    page.section("SEE ALSO");
    page.prose(&page_sections::see_also(own, see));
}

fn has_arguments(command: &Command) -> bool {
    command.get_arguments().any(|argument| !argument.is_hide_set())
}

/// The output of `render`, clap_mangen's, without the section's heading.
fn strip_heading(render: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> String {
    let mut text = Vec::new();
    // Writing to a Vec cannot fail.
    let _ = render(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    match text.split_once(".SH ").and_then(|(_, rest)| rest.split_once('\n')) {
        Some((_, body)) => body.to_owned(),
        None => text,
    }
}

/// A part of the text after a command's help.
#[derive(Debug, PartialEq)]
enum HelpBlock {
    Prose(String),
    List(Vec<String>),
    Lines(Vec<String>),
}

struct Example {
    command: String,
    comment: String,
}

fn after_help(command: &Command) -> Vec<HelpBlock> {
    let text = command.get_after_long_help().or(command.get_after_help());
    parse_blocks(&text.map(ToString::to_string).unwrap_or_default())
}

fn parse_blocks(text: &str) -> Vec<HelpBlock> {
    let mut blocks: Vec<HelpBlock> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        let word = line.trim();
        match (blocks.last_mut().filter(|_| is_open), line.starts_with("  ")) {
            _ if word.is_empty() => {
                is_open = false;
                continue;
            }
            (Some(HelpBlock::List(items)), true) => match word.strip_prefix("- ") {
                Some(item) => items.push(item.to_owned()),
                None => {
                    if let Some(item) = items.last_mut() {
                        item.push(' ');
                        item.push_str(word);
                    }
                }
            },
            (Some(HelpBlock::Lines(lines)), true) => lines.push(word.to_owned()),
            (Some(HelpBlock::Prose(text)), false) if !word.starts_with("Exit status:") => {
                text.push(' ');
                text.push_str(word);
            }
            (_, true) => blocks.push(match word.strip_prefix("- ") {
                Some(item) => HelpBlock::List(vec![item.to_owned()]),
                None => HelpBlock::Lines(vec![word.to_owned()]),
            }),
            (_, false) => blocks.push(HelpBlock::Prose(word.to_owned())),
        }
        is_open = true;
    }
    blocks
}

/// What the section "EXIT STATUS" says, where this is it.
fn exit_status(block: &HelpBlock) -> Option<&str> {
    match block {
        HelpBlock::Prose(text) => text.strip_prefix("Exit status:").map(str::trim),
        _ => None,
    }
}

/// The command lines among the blocks.
fn parse_examples(blocks: &[HelpBlock]) -> Vec<Example> {
    let lines = blocks.iter().filter_map(|block| match block {
        HelpBlock::Lines(lines) => Some(lines),
        _ => None,
    });
    let example = |line: &String| {
        // Two blanks separate the command from its comment.
        let (command, comment) = line.rsplit_once("  ").unwrap_or((line, ""));
        let command = command.split_whitespace().collect::<Vec<_>>().join(" ");
        let comment = comment.trim().to_owned();
        command.starts_with("fanfs ").then_some(Example { command, comment })
    };
    lines.flatten().filter_map(example).collect()
}

/// Adds the text after the help, except for its examples and the exit status.
fn add_description(page: &mut ManPage, blocks: &[HelpBlock]) {
    for block in blocks.iter().filter(|block| exit_status(block).is_none()) {
        match block {
            HelpBlock::Prose(text) if text == "Examples:" => {}
            HelpBlock::Prose(text) => page.prose(text),
            HelpBlock::List(items) => items.iter().for_each(|item| page.bullet(item)),
            HelpBlock::Lines(lines) => {
                let plain = lines.iter().filter(|line| !line.starts_with("fanfs "));
                let plain: Vec<&str> = plain.map(String::as_str).collect();
                if !plain.is_empty() {
                    page.lines(&plain);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_text_is_split_into_its_parts() {
        let text = "Compared are:\n  - names,\n    all of them;\n  - bytes.\nNothing else.\n\n  \
                    fanfs verify v.toml   a look\n  v.toml /mnt fanfs ro 0 0\n\nOnce\nmore.\n\
                    Exit status: 0 fine,\n3 not.";
        let blocks = parse_blocks(text);
        let own = |text: &str| text.to_owned();
        assert_eq!(
            blocks,
            [
                HelpBlock::Prose(own("Compared are:")),
                HelpBlock::List(vec![own("names, all of them;"), own("bytes.")]),
                HelpBlock::Prose(own("Nothing else.")),
                HelpBlock::Lines(vec![
                    own("fanfs verify v.toml   a look"),
                    own("v.toml /mnt fanfs ro 0 0")
                ]),
                HelpBlock::Prose(own("Once more.")),
                HelpBlock::Prose(own("Exit status: 0 fine, 3 not.")),
            ]
        );
        assert_eq!(blocks.iter().find_map(exit_status), Some("0 fine, 3 not."));
        let examples = parse_examples(&blocks);
        assert_eq!(examples.len(), 1);
        assert_eq!(examples[0].command, "fanfs verify v.toml");
        assert_eq!(examples[0].comment, "a look");
    }

    #[test]
    fn every_command_has_a_page_with_every_section() {
        let root = super::super::cli_command();
        let pages = pages(root.clone());
        for command in visible_commands(&root) {
            let file = format!("man1/fanfs-{}.1", command.get_name());
            let GeneratedFile { text, .. } = pages.iter().find(|p| p.path == file).expect(&file);
            let sections =
                ["NAME", "SYNOPSIS", "\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "\"SEE ALSO\""];
            for section in sections {
                assert!(text.contains(&format!("\n.SH {section}\n")), "{file}: {section}");
            }
        }
    }
}
