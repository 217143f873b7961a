//! Providers that ask by running a program.
//!
//! A [`CommandTemplate`] is a command line with placeholders:
//! - `{path}`: the file in the cluster's own namespace,
//! - `{local}`: the same file under a replica's directory,
//! - `{size}`: bytes.
//!
//! No shell is involved: every word is one argument, whatever the file's name. (A remote shell
//! started by `ssh` splits words again; `{path:sh}` quotes for it.)
//!
//! *Invariant:* the program is killed when it exceeds its time limit or its answer gets too
//! long, and no reader waits for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::error::PlacementError;
use crate::config::placement::{CommandError, check_command};

/// The longest answer that is read: [`super::chunks::MAX_CELLS`] lines fit.
pub const MAX_OUTPUT_BYTES: usize = 256 << 20;

/// How much of a failed program's error output is kept, characters.
const MAX_STDERR_CHARS: usize = 300;

/// The values of the placeholders.
#[derive(Clone, Debug, Default)]
pub struct TemplateValues<'a> {
    /// `{path}`
    pub path: &'a [u8],
    /// `{local}`
    pub local: &'a [u8],
    /// `{size}`
    pub size: u64,
}

/// A command line with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandTemplate {
    words: Vec<String>,
    /// The program's standard input.
    input: &'static str,
}

impl CommandTemplate {
    /// Checks the placeholders in `words`.
    ///
    /// # Errors
    /// [`CommandError`] names the word with an unknown placeholder.
    pub fn new(words: Vec<String>) -> Result<Self, CommandError> {
        check_command(&words)?;
        Ok(Self { words, input: "" })
    }

    /// The same, for a program that reads `input`.
    #[must_use]
    pub fn with_input(self, input: &'static str) -> Self {
        Self { input, ..self }
    }

    /// The words as configured.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Runs the program and returns its standard output.
    ///
    /// # Errors
    /// If it cannot be started, fails, takes longer than `limit`, or writes more than
    /// [`MAX_OUTPUT_BYTES`].
    pub async fn run(
        &self,
        values: &TemplateValues<'_>,
        limit: Duration,
    ) -> Result<Vec<u8>, PlacementError> {
        let output = self.run_any_status(values, limit).await?;
        match output.failure {
            Some(failure) => Err(failure.error),
            None => Ok(output.stdout),
        }
    }

    /// As [`CommandTemplate::run`], for a program that may answer and still exit with a status
    /// other than 0. Returns its output, and its failure if there was one.
    ///
    /// # Errors
    /// As [`CommandTemplate::run`], except for a program that fails.
    pub async fn run_any_status(
        &self,
        values: &TemplateValues<'_>,
        limit: Duration,
    ) -> Result<ProgramOutput, PlacementError> {
        let words: Vec<OsString> = self.words.iter().map(|word| substitute(word, values)).collect();
        // The name comes from the template: filled-in values may name a file.
        let program = program_name(OsStr::new(&self.words[0]));
        let run = run_program(program, &words, self.input);
        let answer = tokio::time::timeout(limit, run).await;
        answer.unwrap_or(Err(PlacementError::TimedOut(limit)))
    }
}

/// The result of a program that has ended.
#[derive(Debug)]
pub struct ProgramOutput {
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// How it failed, if it did.
    pub failure: Option<ProgramFailure>,
}

/// How a program failed.
#[derive(Debug)]
pub struct ProgramFailure {
    /// Its exit status; `None` if a signal ended it.
    pub code: Option<i32>,
    /// The error, a [`PlacementError::ProgramFailed`].
    pub error: PlacementError,
}

async fn run_program(
    program: String,
    words: &[OsString],
    input: &'static str,
) -> Result<ProgramOutput, PlacementError> {
    let start = |error| PlacementError::StartFailed { program: program.clone(), error };
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(start)?;
    let stdout = read_at_most(child.stdout.take(), MAX_OUTPUT_BYTES);
    let stderr = read_at_most(child.stderr.take(), 1 << 16);
    let stdin = child.stdin.take();
    let write = async {
        if let Some(mut stdin) = stdin {
            // A program that ends before it has read all shows that by its status and output.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let (stdout, said, ()) = tokio::join!(stdout, stderr, write);
    let stdout = stdout.map_err(start)?;
    if stdout.len() > MAX_OUTPUT_BYTES {
        return Err(PlacementError::TooLong(MAX_OUTPUT_BYTES));
    }
    let status = child.wait().await.map_err(start)?;
    let failure = (!status.success()).then(|| {
        let said = one_line(&said.unwrap_or_default());
        let error = PlacementError::ProgramFailed { program, status: status.to_string(), said };
        ProgramFailure { code: status.code(), error }
    });
    Ok(ProgramOutput { stdout, failure })
}

/// Reads to the end, or to one byte more than `most`.
async fn read_at_most(
    from: Option<impl AsyncRead + Unpin>,
    most: usize,
) -> std::io::Result<Vec<u8>> {
    let mut taken = Vec::new();
    if let Some(from) = from {
        from.take(most as u64 + 1).read_to_end(&mut taken).await?;
    }
    Ok(taken)
}

fn program_name(word: &OsStr) -> String {
    Path::new(word).file_name().unwrap_or(word).to_string_lossy().into_owned()
}

/// The end of a program's error output, on one line.
fn one_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let printable: String = text.chars().filter(|c| !c.is_control()).collect();
    match printable.char_indices().nth_back(MAX_STDERR_CHARS) {
        Some((start, _)) => format!("...{}", &printable[start..]),
        None if printable.is_empty() => "it wrote no error message".to_owned(),
        None => printable,
    }
}

fn substitute(word: &str, values: &TemplateValues<'_>) -> OsString {
    let mut filled = Vec::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else { break };
        filled.extend_from_slice(before.as_bytes());
        let is_quoted = name.ends_with(":sh");
        let value = match name.strip_suffix(":sh").unwrap_or(name) {
            "path" => values.path.to_vec(),
            "local" => values.local.to_vec(),
            _ => values.size.to_string().into_bytes(),
        };
        filled.extend(if is_quoted { shell_quote(&value) } else { value });
        rest = after;
    }
    filled.extend_from_slice(rest.as_bytes());
    OsString::from_vec(filled)
}

/// `value`, quoted as one word of a POSIX shell.
fn shell_quote(value: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in value {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// `path` below `root`, as bytes; the empty path is `root` itself.
pub fn path_below(root: &str, path: &Path) -> Vec<u8> {
    let mut whole = root.trim_end_matches('/').as_bytes().to_vec();
    whole.push(b'/');
    whole.extend_from_slice(path.as_os_str().as_bytes());
    if whole.len() > 1 && whole.ends_with(b"/") {
        whole.pop();
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    fn template(words: &[&str]) -> CommandTemplate {
        CommandTemplate::new(words.iter().map(|word| (*word).to_owned()).collect()).unwrap()
    }

    fn values(path: &'static [u8]) -> TemplateValues<'static> {
        TemplateValues { path, ..TemplateValues::default() }
    }

    #[test]
    fn an_unknown_placeholder_is_refused() {
        let error = CommandTemplate::new(vec!["ls".into(), "{file}".into()]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("{file}") && error.contains("{path}"), "{error}");
        // Braces pair up as `substitute` pairs them.
        assert!(CommandTemplate::new(vec!["{a{path}".into()]).is_err());
        assert!(CommandTemplate::new(vec!["a{b".into(), "}{path}{".into()]).is_ok());
        assert!(CommandTemplate::new(vec![]).is_err());
        assert!(CommandTemplate::new(vec![String::new()]).is_err());
    }

    #[tokio::test]
    async fn a_hostile_name_stays_one_argument() {
        let name: &[u8] = b"/a b;$(touch /tmp/x)'\"\n{size}\xff";
        let out = template(&["printf", "%s", "{path}"]).run(&values(name), SOON).await.unwrap();
        assert_eq!(out, name);
        let out = template(&["sh", "-c", "printf %s {path:sh}"]).run(&values(name), SOON).await;
        assert_eq!(out.unwrap(), name);
    }

    #[tokio::test]
    async fn the_error_of_a_failed_program_is_quoted() {
        let failing = template(&["sh", "-c", "echo 'no such\nfile' >&2; exit 3"]);
        let error = failing.run(&values(b""), SOON).await.unwrap_err().to_string();
        assert_eq!(error, "sh failed (exit status: 3): no such file");
        let error = template(&["/no/such/tool"]).run(&values(b""), SOON).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot run tool:"), "{error}");
    }

    #[tokio::test]
    async fn a_hung_program_is_killed() {
        let room = tempfile::tempdir().unwrap();
        let script = format!("sleep 600; touch {}", room.path().display());
        let limit = Duration::from_millis(50);
        let error = template(&["sh", "-c", &script]).run(&values(b""), limit).await.unwrap_err();
        assert!(matches!(error, PlacementError::TimedOut(_)), "{error}");
        // A zombie has no command line.
        let runs = |entry: std::fs::DirEntry| {
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == script.as_bytes())
        };
        let until = std::time::Instant::now() + SOON;
        while std::fs::read_dir("/proc").unwrap().any(|entry| runs(entry.unwrap())) {
            assert!(std::time::Instant::now() < until, "the program goes on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[test]
    fn paths_are_resolved_below_the_root() {
        assert_eq!(path_below("/", Path::new("a/b")), b"/a/b");
        assert_eq!(path_below("/vol/", Path::new("a")), b"/vol/a");
        assert_eq!(path_below("/vol", Path::new("")), b"/vol");
        assert_eq!(path_below("/", Path::new("")), b"/");
    }
}
