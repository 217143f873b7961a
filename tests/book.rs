//! The documents are consistent: every page of the book is in its table of contents, and every link
//! between files of this repository leads to an existing target.
//!
//! Input: the Markdown of `docs/` and of the README files named in [`others`]. Output: a list of
//! broken links, which must be empty. Anchors are those that mdBook and GitHub generate from
//! headings; pages use only headings for which both generate the same.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every page below `docs/`, including the table of contents, without mdBook's output.
fn pages() -> Vec<PathBuf> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("docs/book") {
                    walk(&path, found);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join("docs"), &mut found);
    assert!(found.len() > 10, "the documents have moved");
    found.sort();
    found
}

/// Documents outside the book whose links are checked as well.
fn others() -> Vec<PathBuf> {
    let mut others: Vec<_> = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "packaging/README.md",
        "benches/README.md",
        "fuzz/README.md",
    ]
    .map(|name| root().join(name))
    .into();
    let records = fs::read_dir(root().join("benches/results")).unwrap();
    let records = records.map(|entry| entry.unwrap().path());
    others.extend(records.filter(|path| path.extension().is_some_and(|kind| kind == "md")));
    others
}

/// `path` without `.` and `..`; the removed components need not exist.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(plain.pop(), "{} leads out", path.display()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// A line of a page that is prose: neither in a fenced block nor an indented one.
struct Line<'a> {
    number: usize,
    text: &'a str,
}

/// The lines of `text` that are not code. An indented block begins after an empty line. Text
/// indented below a list item belongs to the item if it has the item's indentation.
fn prose(text: &str) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut fence: Option<&str> = None;
    let (mut item, mut after_empty, mut indented) = (0, true, false);
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        if let Some(open) = fence {
            if start.starts_with(open) {
                fence = None;
            }
            continue;
        }
        if start.starts_with("```") || start.starts_with("~~~") {
            fence = Some(&start[..3]);
            continue;
        }
        if start.is_empty() {
            after_empty = true;
            continue;
        }
        let indent = line.len() - start.len();
        if indent == 0 && marker(start).is_none() && after_empty {
            item = 0;
        }
        indented = indent >= item + 4 && (after_empty || indented);
        after_empty = false;
        if indented {
            continue;
        }
        if let Some(width) = marker(start) {
            item = indent + width;
        }
        lines.push(Line { number: index + 1, text: line });
    }
    lines
}

/// The width of the list marker at the start of `text`.
fn marker(text: &str) -> Option<usize> {
    if text.starts_with("- ") || text.starts_with("* ") {
        return Some(2);
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0 && text[digits..].starts_with(". ")).then_some(digits + 2)
}

/// `line` without the text between backticks.
fn without_code(line: &str) -> String {
    let mut kept = String::new();
    let mut rest = line;
    while let Some(at) = rest.find('`') {
        let ticks = rest[at..].bytes().take_while(|byte| *byte == b'`').count();
        let (before, after) = (&rest[..at], &rest[at + ticks..]);
        kept.push_str(before);
        match after.find(&rest[at..at + ticks]) {
            Some(end) => rest = &after[end + ticks..],
            None => return kept + &rest[at..],
        }
    }
    kept + rest
}

/// The targets of a line's links and images.
fn targets(line: &str) -> Vec<String> {
    let line = without_code(line);
    let mut found = Vec::new();
    let mut rest = line.as_str();
    while let Some(at) = rest.find("](") {
        rest = &rest[at + 2..];
        let Some(end) = rest.find(')') else { break };
        found.push(rest[..end].split(' ').next().unwrap().to_owned());
        rest = &rest[end..];
    }
    found
}

/// The anchor of a heading: lower case, blanks become hyphens, and only letters, digits, hyphens
/// and underscores stay.
fn anchor(heading: &str) -> String {
    // A link in a heading counts with its text only.
    let mut text = String::new();
    let mut rest = heading.trim();
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    text.to_lowercase()
        .chars()
        .filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            _ => letter.is_alphanumeric().then_some(letter),
        })
        .collect()
}

/// The anchors of a page; equal headings after the first are numbered.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut found = BTreeSet::new();
    for line in prose(text) {
        let hashes = line.text.bytes().take_while(|byte| *byte == b'#').count();
        if !(1..=6).contains(&hashes) || !line.text[hashes..].starts_with(' ') {
            continue;
        }
        let name = anchor(&line.text[hashes..]);
        let count = seen.entry(name.clone()).or_default();
        found.insert(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
    found
}

/// The error in a link of `page`; `None` for a correct link and for links out of the repository.
fn wrong(page: &Path, text: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, fragment) = target.split_once('#').map_or((target, None), |(a, b)| (a, Some(b)));
    let path = match file {
        "" => page.to_owned(),
        file => plain(&page.parent().unwrap().join(file)),
    };
    if !path.exists() {
        return Some(format!("there is no {}", shown(&path)));
    }
    let fragment = fragment?;
    if path.extension().is_none_or(|extension| extension != "md") {
        return Some(format!("an anchor in {}, which is no page", shown(&path)));
    }
    let other;
    let text = match file {
        "" => text,
        _ => {
            other = fs::read_to_string(&path).unwrap();
            &other
        }
    };
    let known = anchors(text);
    (!known.contains(fragment)).then(|| {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        format!("{} has no #{fragment}; it has {}", shown(&path), known.join(", "))
    })
}

#[test]
fn every_link_leads_somewhere() {
    let mut faults = Vec::new();
    let mut links = 0;
    for page in pages().into_iter().chain(others()) {
        let text = fs::read_to_string(&page).unwrap();
        for line in prose(&text) {
            for target in targets(line.text) {
                links += 1;
                if let Some(what) = wrong(&page, &text, &target) {
                    faults.push(format!("{}:{}: {target}: {what}", shown(&page), line.number));
                }
            }
        }
    }
    assert!(links > 100, "only {links} links were found");
    assert!(faults.is_empty(), "{} links lead nowhere:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: Vec<PathBuf> =
        summary.lines().flat_map(targets).map(|target| plain(&docs.join(target))).collect();
    let once: BTreeSet<&PathBuf> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "a page is listed twice");
    let missing: Vec<String> = pages()
        .iter()
        .filter(|page| !page.ends_with("SUMMARY.md") && !once.contains(page))
        .map(|page| shown(page))
        .collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {}", missing.join(", "));
}

/// The table of contents is searched for a page's title.
/// More than this is not read. A word has a letter or a digit; tables and code count too.
const MAX_WORDS: usize = 25_000;

#[test]
fn the_documents_stay_short() {
    let words = |page: &PathBuf| {
        let text = fs::read_to_string(page).unwrap();
        text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
    };
    let all = pages().into_iter().chain([root().join("README.md")]);
    let total: usize = all.map(|page| words(&page)).sum();
    assert!(total <= MAX_WORDS, "README.md and docs/ have {total} words, more than {MAX_WORDS}");
}

#[test]
fn every_page_begins_with_its_title() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.starts_with("# "), "{} does not begin with a title", shown(&page));
        let titles = prose(&text).iter().filter(|line| line.text.starts_with("# ")).count();
        assert!(page.ends_with("SUMMARY.md") || titles == 1, "{} has {titles}", shown(&page));
    }
}

#[test]
fn anchors_match_mdbook_and_github() {
    assert_eq!(anchor(" `[[replica]]`"), "replica");
    assert_eq!(anchor(" In /etc/fstab"), "in-etcfstab");
    assert_eq!(anchor(" ETIMEDOUT, EIO"), "etimedout-eio");
    assert_eq!(anchor(" When to: `[read] cache` and `x`"), "when-to-read-cache-and-x");
    assert_eq!(anchor(" See [this](there.md#x) _now_"), "see-this-_now_");
    let text = "# A\n\n## B\n\n```\n## not\n```\n\n    ## nor this\n\n## B\n";
    assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["a", "b", "b-1"]);
}

#[test]
fn links_in_code_are_ignored() {
    let text = "[a](b.md) `[c](d.md)` ![e](f.svg \"g\")\n\n    [h](i.md)\n\n- j\n\n  [k](l.md)\n\n      [m](n.md)\n";
    let found: Vec<String> = prose(text).iter().flat_map(|line| targets(line.text)).collect();
    assert_eq!(found, ["b.md", "f.svg", "l.md"]);
}

/// The pages of promises.
const PROMISES: [&str; 2] = ["docs/SEMANTICS.md", "docs/SECURITY.md"];

/// The most statements without a test; each has a reason.
const NOT_TESTED: usize = 12;

/// A line with a promise: a list item, or a row of a table.
#[derive(Debug)]
struct Promise<'a> {
    number: usize,
    text: &'a str,
    /// Names of tests.
    tests: Vec<&'a str>,
    /// Marked as a promise that no test here can show.
    is_not_tested: bool,
    /// A table whose tests are in the paragraph before it.
    is_covered: bool,
}

/// The tests that a line names beside its promises: `(test: `a::b`, `c::d`)`.
fn named(line: &str) -> Vec<&str> {
    let spans = line.split("(test: ").skip(1).filter_map(|rest| rest.split_once(')'));
    spans.flat_map(|(names, _)| names.split('`').skip(1).step_by(2)).collect()
}

/// All promises of a page, and the paragraphs that name tests.
///
/// A table has its tests in its last column, if that is headed `test`, or in the line
/// before it.
fn promises(page: &str) -> Vec<Promise<'_>> {
    let mut found = Vec::new();
    let (mut before, mut in_table, mut by_row, mut covered) = ("", false, false, false);
    for Line { number, text } in prose(page) {
        let is_row = text.starts_with('|');
        if is_row && !in_table {
            by_row = text.ends_with("| test |");
            let marks = before.contains("(test: ") || before.contains("(not tested: ");
            covered = !by_row && marks && !before.starts_with("- ");
        }
        let is_head = is_row && (!in_table || text.starts_with("|---"));
        in_table = is_row;
        if !is_row {
            before = text;
        }
        let last = text.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let tests = match is_row && by_row {
            true if is_head => continue,
            true => last.split('`').skip(1).step_by(2).collect(),
            false => named(text),
        };
        let is_not_tested =
            text.contains("(not tested: ") || by_row && last.starts_with("not tested: ");
        let is_item = text.starts_with("- ") || is_row && !is_head;
        if is_item || !tests.is_empty() {
            let is_covered = is_row && covered || !is_item;
            found.push(Promise { number, text, tests, is_not_tested, is_covered });
        }
    }
    found
}

/// The directories that rooms are in.
const SOURCES: [&str; 3] = ["src", "crates/foundation/src", "crates/nfs/src/nfs"];

/// Whether `name` is the full name of a test: `binary::module::function` for those in
/// `tests/` and `crates/nfs/tests/`, `module::tests::function` for those in [`SOURCES`]; of the table of `admission`,
/// with `*` for each of its rows; or a program below `tests/`.
fn is_test(name: &str) -> bool {
    if name.starts_with("tests/") {
        return root().join(name).exists();
    }
    let Some((module, function)) = name.rsplit_once("::") else { return false };
    if let Some(row) = module.strip_prefix("admission::table::") {
        let table = fs::read_to_string(root().join("tests/admission/table.rs")).unwrap();
        return (row == "*" || table.contains(&format!("    {row}: ")))
            && table.contains(&format!(" {function} "));
    }
    let path = module.replace("::", "/");
    let own = path.strip_suffix("/tests").unwrap_or(&path);
    let mut files = vec![format!("tests/{path}.rs"), format!("crates/nfs/tests/{path}.rs")];
    files.extend(
        SOURCES.iter().flat_map(|src| [&*path, own].map(|name| format!("{src}/{name}.rs"))),
    );
    let mut texts = files.iter().filter_map(|file| fs::read_to_string(root().join(file)).ok());
    texts.any(|text| has_test(&text, function))
}

/// Whether this function is there and is a test.
fn has_test(text: &str, function: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let start = format!("fn {function}(");
    let before = |at: usize| {
        let about = |line: &&&str| line.starts_with("#[") || line.starts_with("//");
        lines[..at].iter().rev().take_while(about).any(|line| *line == "#[test]")
    };
    lines.iter().enumerate().any(|(at, line)| line.starts_with(&start) && before(at))
}

#[test]
fn every_test_that_a_promise_names_exists() {
    let mut missing = Vec::new();
    let mut all = 0;
    for page in PROMISES {
        for promise in promises(&fs::read_to_string(root().join(page)).unwrap()) {
            all += promise.tests.len();
            let wrong = promise.tests.iter().filter(|test| !is_test(test));
            missing.extend(wrong.map(|test| format!("{page}:{}: {test}", promise.number)));
        }
    }
    assert!(all > 150, "the pages name their tests in another way: {all}");
    assert!(missing.is_empty(), "no such test:\n{}", missing.join("\n"));
}

#[test]
fn every_promise_names_a_test_or_says_why_it_has_none() {
    let (mut bare, mut not_tested) = (Vec::new(), 0);
    for page in PROMISES {
        for promise in promises(&fs::read_to_string(root().join(page)).unwrap()) {
            not_tested += usize::from(promise.is_not_tested);
            if promise.tests.is_empty() && !promise.is_not_tested && !promise.is_covered {
                let start: String = promise.text.chars().take(80).collect();
                bare.push(format!("{page}:{}: {start}", promise.number));
            }
        }
    }
    let remedy = "write (test: `binary::module::function`) or (not tested: reason) beside it";
    assert!(bare.is_empty(), "promises without a test; {remedy}:\n{}", bare.join("\n"));
    assert!(not_tested <= NOT_TESTED, "{not_tested} promises have no test");
}

/// The Rust files in a directory and below.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    };
    let files = entries.flat_map(below);
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Items of the code that a page names: paths, and types.
fn items(page: &str) -> impl Iterator<Item = &str> {
    let is_item = |text: &&str| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let is_type = text.starts_with(|c: char| c.is_ascii_uppercase())
            && text.contains(|c: char| c.is_ascii_lowercase());
        text.chars().all(is_name) && (is_type || text.contains("::"))
    };
    page.split('`').skip(1).step_by(2).filter(is_item)
}

/// Whether `item`, such as `read::split` or `Scheduler::schedule`, is in the code: its module
/// is a file, and the rest of its path are words of one file.
fn is_in_code(item: &str, files: &[(String, HashSet<String>)]) -> bool {
    let parts: Vec<&str> = item.split("::").collect();
    let is_module = |part: &&&str| part.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let modules = parts.iter().take_while(is_module).count();
    (0..=modules).rev().any(|modules| {
        let (path, rest) = parts.split_at(modules);
        let (file, tests) = (path.join("/"), path.join("/") + "/tests");
        let is_its = |name: &str| path.is_empty() || name == file || name == tests;
        let is_below = |name: &str| name.starts_with(&format!("{file}/"));
        let has_rest = |words: &HashSet<String>| rest.iter().all(|part| words.contains(*part));
        let mut its = files.iter().filter(|(name, _)| is_its(name) || is_below(name));
        (!rest.is_empty() || modules > 1) && its.any(|(_, words)| has_rest(words))
    })
}

#[test]
fn the_architecture_names_items_that_exist() {
    let page = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let words_of = |src: &Path, path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        // An item that a file only imports does not count; an exported item does.
        let is_code = |line: &&str| {
            let line = line.trim_start();
            !line.starts_with("//") && !line.starts_with("use ")
        };
        let code = text.lines().filter(is_code);
        let words = code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
        let name = path.strip_prefix(src).unwrap().with_extension("");
        (name.to_string_lossy().into_owned(), words.map(str::to_owned).collect())
    };
    let mut files: Vec<(String, HashSet<String>)> = Vec::new();
    for src in SOURCES.map(|src| root().join(src)) {
        files.extend(sources(&src).iter().map(|path| words_of(&src, path)));
    }
    let unknown: Vec<_> = items(&page).filter(|item| !is_in_code(item, &files)).collect();
    assert!(items(&page).count() > 60, "the page names items in another way");
    assert!(unknown.is_empty(), "no such item: {unknown:?}");
    assert!(is_in_code("Scheduler::schedule", &files) && is_in_code("read::split", &files));
    assert!(!is_in_code("Scheduler::hurry", &files) && !is_in_code("nowhere::split", &files));
}

#[test]
fn promises_are_parsed_from_a_page() {
    let page = "Text (test: `t::u`).\n\n- One.\n- Two. (test: `a::b`, `c::d`)\n\
                - Three (not tested: so).\n\n| x | test |\n|---|---|\n| r | `e::f` |\n| s | |\n\n\
                Before. (test: `g::h`)\n\n| x | y |\n|---|---|\n| z | `no` |\n";
    let bare = |p: &Promise<'_>| p.tests.is_empty() && !p.is_not_tested && !p.is_covered;
    let found = promises(page);
    let numbers: Vec<usize> = found.iter().filter(|p| bare(p)).map(|p| p.number).collect();
    assert_eq!(numbers, [3, 10]);
    let tests: Vec<&str> = found.iter().flat_map(|p| p.tests.iter().copied()).collect();
    assert_eq!(tests, ["t::u", "a::b", "c::d", "e::f", "g::h"]);
    assert!(is_test("book::promises_are_parsed_from_a_page") && !is_test("book::promises"));
    assert!(!is_test("book::is_test"), "it is no test");
}
