//! TCP sockets to a server, which never block.

use std::ffi::c_int;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, connect, recv, socket_with, sockopt,
};
use rustix::pipe::{SpliceFlags, splice};

use super::receiver::Source;

/// The source ports that prove to a server that the client was started by root, as mount.nfs(8)
/// uses them.
const RESERVED_PORTS: RangeInclusive<u16> = 665..=1023;

/// How many of them are tried before the kernel chooses a port.
const RESERVED_PORT_TRIES: u16 = 32;

/// An idle connection is probed after this time. It notices a cut link that has no calls.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// How long sent bytes may stay without an acknowledgment. A server that was stopped still
/// acknowledges; one behind a cut link does not.
const USER_TIMEOUT: Duration = Duration::from_secs(10);

/// Begins a connection, from a reserved source port if that is wanted and permitted.
pub(super) fn start_connect(to: SocketAddr, reserved: bool) -> io::Result<OwnedFd> {
    if reserved {
        let first = RandomState::new().hash_one(to) as u16;
        let count = RESERVED_PORTS.end() - RESERVED_PORTS.start() + 1;
        for number in 0..RESERVED_PORT_TRIES {
            let port = RESERVED_PORTS.start() + first.wrapping_add(number) % count;
            match start_connect_from(to, Some(port)) {
                Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
                Err(Errno::ACCESS | Errno::PERM) => break,
                other => return Ok(other?),
            }
        }
    }
    Ok(start_connect_from(to, None)?)
}

fn start_connect_from(to: SocketAddr, port: Option<u16>) -> Result<OwnedFd, Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(&socket, KEEPALIVE / KEEPALIVE_PROBES)?;
    sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(&socket, USER_TIMEOUT.as_millis() as u32)?;
    match port {
        Some(port) if to.is_ipv4() => {
            bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
        }
        Some(port) => bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?,
        None => {}
    }
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Makes the kernel report the socket as readable only when so many bytes are there, or none can
/// come.
pub(super) fn set_low_water(socket: &TcpStream, bytes: usize) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    // SAFETY: the option's value is one int, which lives until the call returns.
    let set = unsafe {
        nix::libc::setsockopt(
            socket.as_raw_fd(),
            nix::libc::SOL_SOCKET,
            nix::libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of::<c_int>() as nix::libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Source for &TcpStream {
    fn splice_to(&mut self, pipe: BorrowedFd<'_>, len: usize) -> io::Result<Option<usize>> {
        let splice = || splice(&**self, None, pipe, None, len, SpliceFlags::NONBLOCK);
        match splice() {
            Ok(moved) => return Ok(Some(moved)),
            Err(Errno::AGAIN) => {}
            // This kernel cannot do it, or not now.
            Err(Errno::INVAL | Errno::NOMEM | Errno::NOSYS | Errno::PERM) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // Either the socket has no bytes, or the pipe no room. In a full pipe the kernel does not look
        // at the socket, which may have ended.
        match recv(&**self, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT)? {
            (_, 0) => Ok(Some(0)),
            // They may have come since.
            _ => match splice() {
                Err(Errno::AGAIN) => Ok(None),
                moved => Ok(Some(moved?)),
            },
        }
    }
}

/// The connection, which the kernel has reported as ready to send.
pub(super) fn finish_connect(socket: OwnedFd) -> io::Result<TcpStream> {
    sockopt::socket_error(&socket)??;
    let socket = TcpStream::from(socket);
    // To a port of this machine where no program listens, a socket can connect itself.
    match socket.local_addr()? == socket.peer_addr()? {
        true => Err(io::ErrorKind::ConnectionRefused.into()),
        false => Ok(socket),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

    use super::*;

    #[test]
    fn a_full_pipe_differs_from_an_empty_socket_and_from_one_that_has_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (read, write) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        assert_eq!(fcntl_setpipe_size(&write, 4096), Ok(4096));
        let splice = || (&socket).splice_to(write.as_fd(), 1 << 20);
        let would_block = |result: io::Result<Option<usize>>| {
            result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        let settled = |wanted: Option<usize>| {
            let until = std::time::Instant::now() + Duration::from_secs(10);
            loop {
                match splice() {
                    Ok(found) if found == wanted => return,
                    other => assert!(would_block(other), "wanted {wanted:?}"),
                }
                assert!(std::time::Instant::now() < until, "wanted {wanted:?}");
            }
        };
        assert!(would_block(splice()), "empty");
        server.write_all(b"first").unwrap();
        settled(Some(5));
        assert!(would_block(splice()), "a full pipe, and an empty socket");
        server.write_all(b"second").unwrap();
        settled(None);
        assert_eq!(rustix::io::read(&read, &mut [0; 5]), Ok(5));
        settled(Some(6));
        drop(server);
        settled(Some(0));
    }
}
