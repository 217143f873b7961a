//! `fanfs init nfs://SERVER`: the directories that a server exports.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::cli::{Failure, printable};
use crate::nfs::NfsAddress;
use crate::survey::{DEFAULT_LIMIT, list_exports};

/// The exports of a server.
#[derive(Debug, Serialize)]
pub(super) struct ServerExports {
    server: String,
    exports: Vec<ListedExport>,
}

#[derive(Debug, Serialize)]
struct ListedExport {
    /// The value of `address` in a configuration.
    address: String,
    /// The clients that may mount it, as the server writes them; empty if all may, null if the server
    /// does not say.
    clients: Option<Vec<String>>,
}

impl ServerExports {
    /// Asks the server, if `argument` names only a server: `nfs://SERVER`, or `nfs://SERVER/` if it
    /// does not export its root. `None` for other arguments.
    ///
    /// # Errors
    /// If the server does not answer.
    pub(super) fn of_server(argument: &Path) -> Result<Option<Self>, Failure> {
        let Some(server) = argument.to_str().and_then(|text| text.strip_prefix("nfs://")) else {
            return Ok(None);
        };
        let may_be_root = server.ends_with('/');
        let server = server.trim_end_matches('/');
        if server.is_empty() || server.contains('/') {
            return Ok(None);
        }
        let text = format!("nfs://{server}/");
        let root: NfsAddress = text.parse().map_err(|error| {
            Failure::usage(format!("{} is not valid: {error}", printable(&text)))
        })?;
        let listed = list_exports(&root, DEFAULT_LIMIT)
            .map_err(|error| Failure::failed(format!("{text}: {error}")))?;
        if may_be_root && listed.iter().any(|export| export.path == b"/") {
            return Ok(None);
        }
        let exports = listed.into_iter().map(|export| ListedExport {
            address: NfsAddress { export: export.path, ..root.clone() }.to_string(),
            clients: export.clients.map(|clients| {
                clients.iter().map(|client| String::from_utf8_lossy(client).into()).collect()
            }),
        });
        Ok(Some(Self { server: server.to_owned(), exports: exports.collect() }))
    }
}

impl fmt::Display for ServerExports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.exports.first() else {
            return writeln!(f, "{} exports nothing", printable(&self.server));
        };
        for ListedExport { address, clients } in &self.exports {
            match clients.as_deref() {
                None => writeln!(f, "{address}")?,
                Some([]) => writeln!(f, "{address}  for everyone")?,
                Some(clients) => writeln!(f, "{address}  for {}", printable(&clients.join(" ")))?,
            }
        }
        writeln!(f, "\nnext: fanfs init {} and the same export of other servers", first.address)
    }
}
