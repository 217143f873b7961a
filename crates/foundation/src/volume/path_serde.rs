//! Paths in JSON: text if they are UTF-8, otherwise an array of bytes. Different paths have
//! different forms.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The JSON of a path.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PathJson {
    /// A path in UTF-8.
    Text(String),
    /// The bytes of any other path.
    Bytes(Vec<u8>),
}

/// For `#[serde(with)]`.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => text.serialize(serializer),
        None => path.as_os_str().as_bytes().serialize(serializer),
    }
}

/// For `#[serde(with)]`.
///
/// # Errors
/// If the value is neither text nor an array of bytes.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = match PathJson::deserialize(deserializer)? {
        PathJson::Text(text) => OsString::from(text),
        PathJson::Bytes(bytes) => OsString::from_vec(bytes),
    };
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Named(#[serde(with = "super")] PathBuf);

    #[test]
    fn every_path_survives_a_round_trip() {
        for (bytes, written) in [
            (&b"/mnt/a b\n"[..], Some("\"/mnt/a b\\n\"")),
            (b"", Some("\"\"")),
            (b"/mnt/\xff\xfe", None),
        ] {
            let named = Named(PathBuf::from(OsString::from_vec(bytes.to_vec())));
            let json = serde_json::to_string(&named).unwrap();
            assert!(written.is_none_or(|written| written == json), "{json}");
            assert_eq!(serde_json::from_str::<Named>(&json).unwrap(), named);
        }
    }
}
