use super::*;

/// A reply in two fragments, which comes in small parts.
fn reply_slowly(socket: &mut TcpStream, xid: u32, data: &[u8]) -> std::io::Result<()> {
    let whole = data_reply(xid, data);
    let (first, second) = whole[4..].split_at(300_000);
    let marks = [first.len() as u32, 0x8000_0000 | second.len() as u32].map(u32::to_be_bytes);
    let fragments = [&marks[0][..], first, &marks[1][..], second].concat();
    for part in fragments.chunks(20_000) {
        socket.write_all(part)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The receiver waits for larger parts of it, and for none that does not come.
#[test]
fn replies_that_come_slowly_are_received() {
    let data: Vec<u8> = (0..700_000_u32).map(|i| (i * 7 + i / 999) as u8).collect();
    let sent = data.clone();
    let server = Server::start(move |_, mut peer| {
        while let Some(xid) = peer.next_call() {
            match peer.last_room {
                4 => peer.reply(xid, b"data"),
                _ => drop(reply_slowly(&mut peer.socket, xid, &sent)),
            }
        }
    });
    let transport = server.connect(1);
    for _ in 0..3 {
        let large = start(&transport, 700_000, LONG);
        let small = start(&transport, 4, LONG);
        assert!(large.recv().unwrap().unwrap() == data);
        assert_eq!(small.recv().unwrap().unwrap(), b"data");
    }
    assert_eq!(transport.counters()[0].connected, 1, "the connection was given up");
}

/// Less has come than the receiver waits for; it is received nevertheless.
#[test]
fn a_part_of_a_reply_is_received_while_no_more_comes() {
    let (go, may_go) = channel::<()>();
    let server = Server::start(move |_, mut peer| {
        while let Some(xid) = peer.next_call() {
            if peer.last_room == 4 {
                peer.reply(xid, b"data");
                continue;
            }
            let reply = data_reply(xid, &[7; 700_000]);
            for part in [&reply[..20_000], &reply[20_000..120_000], &reply[120_000..]] {
                let _ = peer.socket.write_all(part);
                let _ = may_go.recv();
            }
        }
    });
    let transport = server.connect(1);
    let wait_for = |bytes: u64| {
        let until = Instant::now() + LONG / 2;
        while transport.counters()[0].received < bytes {
            assert!(Instant::now() < until, "{bytes} bytes are not received");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let answer = start(&transport, 700_000, LONG);
    for bytes in [20_000, 120_000] {
        wait_for(bytes);
        go.send(()).unwrap();
    }
    assert!(answer.recv().unwrap().unwrap() == vec![7; 700_000]);
    go.send(()).unwrap();
    // The rest of a reply that is too late is discarded.
    let late = start(&transport, 700_000, Duration::from_millis(10));
    assert!(matches!(late.recv().unwrap(), Err(RpcError::Late)));
    (0..3).for_each(|_| go.send(()).unwrap());
    assert_eq!(start(&transport, 4, LONG).recv().unwrap().unwrap(), b"data");
}

/// The server closes the connection in the middle of a reply that comes slowly.
#[test]
fn a_slow_reply_that_ends_is_made_again() {
    let server = Server::start(|number, mut peer| {
        while let Some(xid) = peer.next_call() {
            match number {
                0 => {
                    let reply = data_reply(xid, &[1; 700_000]);
                    for part in reply[..350_000].chunks(20_000) {
                        let _ = peer.socket.write_all(part);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    break;
                }
                _ => drop(reply_slowly(&mut peer.socket, xid, &[2; 700_000])),
            }
        }
    });
    let transport = server.connect(1);
    let answer = start(&transport, 700_000, LONG).recv().unwrap().unwrap();
    assert!(answer == vec![2; 700_000]);
}
