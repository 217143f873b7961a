//! Any text of a volume's file is parsed, or refused in one line.

use std::path::Path;

/// Parses a volume's file.
pub(crate) fn check_volume(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match fanfs::config::parse(text, Path::new("/volume.toml")) {
        Ok(config) => assert!(!config.replicas.is_empty()),
        Err(error) => {
            let error = error.to_string();
            assert!(!error.is_empty() && !error.contains(char::is_control), "{error:?}");
        }
    }
}
