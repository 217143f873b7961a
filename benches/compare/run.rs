//! The comparison itself: rounds of passes that alternate between candidates.
//!
//! All candidates with one number of replicas stay mounted through all rounds, so each daemon is
//! measured after it has run for a while. A round has one pass of each candidate, and each round
//! starts with another candidate.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::candidate::{Candidate, Mounted};
use super::load::{Load, Pass};
use super::null::FILE;
use super::options::Options;
use super::room::Room;
use super::{Failure, interrupted};

/// Measures every load except `scaling`, over `count` replicas.
pub(super) fn over(
    count: usize,
    candidates: &[Candidate],
    options: &Options,
    passes: &mut Vec<Pass>,
    notes: &mut Vec<String>,
) -> Result<(), Failure> {
    let loads: Vec<Load> =
        options.loads.iter().copied().filter(|load| *load != Load::Scaling).collect();
    if loads.is_empty() {
        return Ok(());
    }
    let fits =
        |c: &&Candidate| loads.iter().any(|load| load.fits(c)) && (count > 1 || !c.needs_several());
    let copies = candidates.iter().filter(|c| c.holds_the_file()).count() as u64;
    let room = Room::new(count, options.size, 1 + copies)?;
    eprintln!("making {count} replica(s) of {} MiB", options.size >> 20);
    let replicas = room.fill(count, options.size)?;
    let mut mounted: Vec<Mounted> = Vec::new();
    for candidate in candidates.iter().filter(fits) {
        match start(candidate, &room, &replicas, options.size) {
            Ok(one) => mounted.push(one),
            Err(failure) => {
                let note = format!("{} is left out: {failure}.", candidate.name);
                eprintln!("{note}");
                notes.push(note);
            }
        }
        interrupted()?;
    }
    for load in loads {
        alternate(load, count, &mounted, options, passes)?;
    }
    Ok(())
}

/// Mounts a candidate and checks its content; the figures of a wrong mount are worthless.
fn start(
    candidate: &Candidate,
    room: &Room,
    replicas: &[PathBuf],
    size: u64,
) -> Result<Mounted, Failure> {
    let one = candidate.start(room, replicas, "", size)?;
    if one.daemon.is_some() && !candidate.is_null() {
        same_content(&one.files[0], &replicas[0].join(FILE), size)?;
    }
    Ok(one)
}

fn alternate(
    load: Load,
    count: usize,
    mounted: &[Mounted],
    options: &Options,
    passes: &mut Vec<Pass>,
) -> Result<(), Failure> {
    let mut fitting: Vec<&Mounted> = mounted.iter().filter(|m| load.fits(&m.candidate)).collect();
    for round in 0..options.rounds {
        for one in &fitting {
            let pass = load
                .measure(one, (count, round), options.size, options.seconds)
                .map_err(|failure| Failure(format!("{}: {failure}", one.candidate.name)))?;
            interrupted()?;
            say(&pass, options.rounds);
            passes.push(pass);
        }
        if !fitting.is_empty() {
            fitting.rotate_left(1);
        }
    }
    Ok(())
}

/// One line of progress about a pass.
pub(super) fn say(pass: &Pass, rounds: usize) {
    let rate = if pass.load.is_random() {
        format!("{:9.0} reads/s", pass.reads_per_second)
    } else {
        format!("{:9.0} MB/s", pass.bytes_per_second / 1e6)
    };
    eprintln!(
        "{:>2} replica(s), {:?}, round {}/{rounds}: {:18} {rate}, CPU s/GiB: daemon {}, total {:.3}",
        pass.replicas,
        pass.load,
        pass.round + 1,
        pass.candidate,
        super::report::cell(pass.daemon_cpu_per_gib(), 3),
        pass.cpu_per_gib(),
    );
}

fn same_content(shown: &Path, replica: &Path, size: u64) -> Result<(), Failure> {
    let mut blocks = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let at = (size / 2).saturating_sub(1 << 20);
    let len = size.min(1 << 20) as usize;
    for (path, block) in [shown, replica].into_iter().zip(&mut blocks) {
        File::open(path)?.read_exact_at(&mut block[..len], at)?;
    }
    if blocks[0] == blocks[1] {
        Ok(())
    } else {
        Err(Failure("it shows other content than the replica".to_owned()))
    }
}
