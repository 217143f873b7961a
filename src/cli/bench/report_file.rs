//! The report of `fanfs bench --report`. fanfs checks that the file can be written before the
//! measurement starts, and replaces it in one step at the end.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::bench::{Report, html_report};
use crate::cli::Failure;

fn path_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
}

/// The destination of the report. An existing file stays unchanged until the report is complete.
pub(super) struct ReportFile {
    path: PathBuf,
    /// The temporary file that replaces a regular file, or becomes a new one; dropping it removes
    /// the file. `None` for everything else (a pipe, a terminal), which is written in place.
    temp_file: Option<NamedTempFile>,
}

impl ReportFile {
    /// Checks that `path` can be written.
    pub(super) fn prepare(path: &Path) -> Result<Self, Failure> {
        let prepare = || {
            let (path, mode) = match fs::metadata(path) {
                Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
                // /dev/stdout may be a file, which contains the table by the time of the report.
                Ok(there) if !there.is_file() || path.starts_with("/dev") => {
                    return Ok(Self { path: path.to_owned(), temp_file: None });
                }
                Ok(there) => {
                    OpenOptions::new().write(true).open(path)?;
                    // A symbolic link stays a link: its target is replaced.
                    (fs::canonicalize(path)?, Some(there.permissions()))
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => (path.to_owned(), None),
                Err(error) => return Err(error),
            };
            let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
            let aside = tempfile::Builder::new()
                .prefix(".fanfs-bench-")
                // The mode of any new file: the umask reduces it.
                .permissions(Permissions::from_mode(0o666))
                .tempfile_in(directory.unwrap_or(Path::new(".")))?;
            if let Some(mode) = mode {
                aside.as_file().set_permissions(mode)?;
            }
            Ok(Self { path, temp_file: Some(aside) })
        };
        prepare().map_err(|error| path_failure(path, &error))
    }

    /// Renders the report and writes it to its destination.
    pub(super) fn write(self, report: &Report) -> Result<(), Failure> {
        let page = html_report::render_html(report).map_err(Failure::failed)?;
        let Self { path, temp_file: aside } = self;
        let written = match aside {
            None => OpenOptions::new()
                .append(true)
                .open(&path)
                .and_then(|mut file| file.write_all(page.as_bytes())),
            Some(mut aside) => aside
                .write_all(page.as_bytes())
                .and_then(|()| aside.persist(&path).map_err(io::Error::from).map(drop)),
        };
        written.map_err(|error| path_failure(&path, &error))
    }
}
