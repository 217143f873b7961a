//! `nfs://SERVER[:PORT]/EXPORT`, the address of an export, as other clients write it. Unlike in
//! RFC 2224 the path is absolute on the server: it is what `showmount -e` shows.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use thiserror::Error;

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NfsAddress {
    /// A host name or an IP address.
    pub server: String,
    /// The port of the NFS service, if the address has one.
    pub port: Option<u16>,
    /// The path of the export on the server. It begins with a slash.
    pub export: Vec<u8>,
}

/// Why a text is no address of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// It does not begin with `nfs://`.
    #[error("it does not begin with nfs://; write nfs://SERVER/EXPORT")]
    Scheme,
    /// It names no server.
    #[error("it names no server; write nfs://SERVER/EXPORT")]
    NoServer,
    /// Its server can be no host name, and no IP address.
    #[error("the server is neither a host name nor an IP address")]
    Server,
    /// An IPv6 address without its closing bracket.
    #[error("the address of the server lacks its `]`")]
    Bracket,
    /// What follows the colon is no port.
    #[error("the port of the server is not a number from 1 to 65535")]
    Port,
    /// It names no export.
    #[error("it names no export; write nfs://SERVER/EXPORT")]
    NoExport,
    /// It has a query, as other clients take them.
    #[error("options after `?` are not known")]
    Options,
    /// A `%` without two hexadecimal digits, or the byte NUL.
    #[error("`%` is not followed by the two hexadecimal digits of a byte above 0")]
    Escape,
}

impl NfsAddress {
    /// The addresses that the server's name has now, without ports. It may ask a name server, and
    /// block.
    ///
    /// # Errors
    /// If the name is unknown.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let mut addresses = Vec::new();
        for address in (&*self.server, 0).to_socket_addrs()? {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        match addresses.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
            false => Ok(addresses),
        }
    }
}

impl FromStr for NfsAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest = strip_scheme(text).ok_or(AddressError::Scheme)?;
        let slash = rest.find('/').ok_or(AddressError::NoExport)?;
        let place = &rest[..slash];
        let export = &rest[slash..];
        if rest.contains('?') {
            return Err(AddressError::Options);
        }
        let server_end = match place.strip_prefix('[') {
            Some(inner) => inner.find(']').ok_or(AddressError::Bracket)? + 2,
            None => place.find(':').unwrap_or(place.len()),
        };
        let server = place[..server_end].trim_start_matches('[').trim_end_matches(']');
        let port = match &place[server_end..] {
            "" => None,
            port => Some(parse_port(port)?),
        };
        if server.is_empty() {
            return Err(AddressError::NoServer);
        }
        if !is_server(server) {
            return Err(AddressError::Server);
        }
        let mut export = unescape(export)?;
        // Some servers compare paths byte by byte.
        export.dedup_by(|a, b| *a == b'/' && *b == b'/');
        if export.len() > 1 && export.ends_with(b"/") {
            export.pop();
        }
        Ok(Self { server: server.to_owned(), port, export })
    }
}

/// The rest of an address after `nfs://`, in any case (RFC 3986, section 3.1).
pub fn strip_scheme(text: &str) -> Option<&str> {
    const SCHEME: &str = "nfs://";
    let (scheme, rest) = text.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(rest)
}

/// Whether it may be the name of a host, or an IP address. A name may have letters of any language.
fn is_server(text: &str) -> bool {
    // The zone of an IPv6 address follows a `%`.
    text.chars().all(|c| c.is_alphanumeric() || ".-_:%".contains(c))
}

fn parse_port(text: &str) -> Result<u16, AddressError> {
    let digits = text.strip_prefix(':').ok_or(AddressError::Port)?;
    match digits.parse() {
        Ok(port) if port > 0 && digits.bytes().all(|digit| digit.is_ascii_digit()) => Ok(port),
        _ => Err(AddressError::Port),
    }
}

fn unescape(text: &str) -> Result<Vec<u8>, AddressError> {
    let mut bytes = text.bytes();
    let mut unescaped = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || {
                    let digit = bytes.next().map(char::from).and_then(|digit| digit.to_digit(16));
                    digit.ok_or(AddressError::Escape)
                };
                (digit()? * 16 + digit()?) as u8
            }
            other => other,
        };
        if byte == 0 {
            return Err(AddressError::Escape);
        }
        unescaped.push(byte);
    }
    Ok(unescaped)
}

impl fmt::Display for NfsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.server.contains(':') {
            true => write!(f, "nfs://[{}]", self.server)?,
            false => write!(f, "nfs://{}", self.server)?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        self.export.iter().try_for_each(|byte| match byte {
            b'%' | b'?' | b'#' | 0..=b' ' | 0x7f.. => write!(f, "%{byte:02x}"),
            byte => write!(f, "{}", char::from(*byte)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_shown() {
        let cases = [
            ("nfs://gw1.example.com/cluster", "gw1.example.com", None, "/cluster"),
            ("nfs://10.0.0.1:20049/a/b", "10.0.0.1", Some(20049), "/a/b"),
            ("nfs://[fe80::1]:2049/", "fe80::1", Some(2049), "/"),
            ("nfs://[::1]/x%20y%25", "::1", None, "/x y%"),
        ];
        for (text, server, port, export) in cases {
            let address: NfsAddress = text.parse().unwrap();
            let export = export.as_bytes().to_vec();
            assert_eq!(address, NfsAddress { server: server.to_owned(), port, export });
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn superfluous_slashes_are_dropped() {
        for (text, export) in [("nfs://a//x//y/", "/x/y"), ("nfs://a/", "/"), ("nfs://a//", "/")] {
            assert_eq!(text.parse::<NfsAddress>().unwrap().export, export.as_bytes());
        }
    }

    #[test]
    fn each_mistake_has_its_error() {
        let cases = [
            ("/mnt/n1", AddressError::Scheme),
            ("nfs:///cluster", AddressError::NoServer),
            ("nfs://:1/cluster", AddressError::NoServer),
            ("nfs://[]/cluster", AddressError::NoServer),
            ("nfs://[::1/cluster", AddressError::Bracket),
            ("nfs://gw1", AddressError::NoExport),
            ("nfs://gw1:/cluster", AddressError::Port),
            ("nfs://gw1:0/cluster", AddressError::Port),
            ("nfs://gw1:+5/cluster", AddressError::Port),
            ("nfs://gw1:65536/cluster", AddressError::Port),
            ("nfs://[::1]5/cluster", AddressError::Port),
            ("nfs://gw1/cluster?version=3", AddressError::Options),
            ("nfs://gw1/%4", AddressError::Escape),
            ("nfs://gw1/%zz", AddressError::Escape),
            ("nfs://gw1/%00", AddressError::Escape),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<NfsAddress>(), Err(error), "{text}");
        }
    }

    #[test]
    fn a_number_resolves_to_itself() {
        let address: NfsAddress = "nfs://127.0.0.1/x".parse().unwrap();
        assert_eq!(address.resolve().unwrap(), [SocketAddr::from(([127, 0, 0, 1], 0))]);
    }
}
