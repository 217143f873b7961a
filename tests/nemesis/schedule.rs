//! The plan of failures: a pure function of a seed, for mounts and for simulations.
//!
//! An *episode* is one replica's trouble, from one time until another, when it is healed. Except
//! during a *blackout*, a replica breaks only while another one has been healthy for [`SETTLED`].
//! So in every shorter stretch of time at least one replica is healthy throughout, and every call
//! must keep the promises that need one healthy replica.

use std::fmt;
use std::time::Duration;

/// A replica breaks only if another one has been healthy for this long.
pub(crate) const SETTLED: Duration = Duration::from_secs(4);

/// A copy diverges only if the first copy has been healthy for this long, and stays so: it is asked
/// again by then, and decides which version is right. While it is not asked the next one decides.
const DECIDES: Duration = Duration::from_secs(20);

/// The affected calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    Reads,
    Opens,
    Metadata,
    All,
}

/// How a replica fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It does not answer until it is healed.
    Hang(Calls),
    /// Calls take this many times as long as usual.
    Slow(u32),
    /// It answers with this errno.
    Error(i32, Calls),
    /// A read delivers this many bytes at most.
    Crumbs(usize),
    /// Reads say that the file ends where they begin.
    EndsEarly,
    /// For half of each period it does not answer, or fails.
    Flap(Duration, bool),
    /// It shows another version of its files.
    Diverged,
    /// Its mount is gone; the directory beneath looks like another version.
    Unmounted,
}

impl Trouble {
    /// A word for reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hang(_) => "hang",
            Self::Slow(_) => "slow",
            Self::Error(..) => "errno",
            Self::Crumbs(_) | Self::EndsEarly => "short",
            Self::Flap(..) => "flap",
            Self::Diverged => "diverged",
            Self::Unmounted => "unmount",
        }
    }
}

/// One replica's trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Episode {
    pub(crate) replica: usize,
    pub(crate) trouble: Trouble,
    pub(crate) from: Duration,
    /// The time of its heal.
    pub(crate) until: Duration,
}

impl Episode {
    fn meets(&self, from: Duration, until: Duration) -> bool {
        self.from <= until && from <= self.until
    }
}

/// The permitted contents of a schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Menu {
    pub(crate) replicas: usize,
    pub(crate) length: Duration,
    /// Whether there may be times when no replica is healthy.
    pub(crate) blackouts: bool,
    /// The only replica whose files may be of another version, if any.
    pub(crate) diverging: Option<usize>,
    /// Whether mounts can be taken away.
    pub(crate) unmounts: bool,
}

/// All failures, in order of their start.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) episodes: Vec<Episode>,
    replicas: usize,
}

/// A replica's state changes: to this trouble, or to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: Duration,
    pub(crate) replica: usize,
    /// A [`Trouble::Flap`] is reported as its parts.
    pub(crate) trouble: Option<Trouble>,
}

const EIO: i32 = 5;
const ETIMEDOUT: i32 = 110;
const ESTALE: i32 = 116;
const ENOTCONN: i32 = 107;
/// ERESTARTSYS, which no application may ever see.
const ERESTARTSYS: i32 = 512;

impl Schedule {
    /// `episodes` are in the order of their starts.
    pub(crate) fn new(episodes: Vec<Episode>, replicas: usize) -> Self {
        Self { episodes, replicas }
    }

    /// The schedule of this seed.
    pub(crate) fn of(seed: u64, menu: &Menu) -> Self {
        let mut random = Random::new(seed);
        let mut episodes: Vec<Episode> = Vec::new();
        // The time when each is healthy again.
        let mut well = vec![Duration::ZERO; menu.replicas];
        let last = menu.length.saturating_sub(SETTLED);
        let mut at = Duration::from_millis(500);
        let mut next_blackout = random.time(6_000, 15_000);
        let mut diverged_until = Duration::ZERO;
        loop {
            at += random.time(100, 2_500);
            if at >= last {
                break;
            }
            if menu.blackouts && at >= next_blackout && at > diverged_until {
                let until = (at + random.time(500, 3_000)).min(last);
                for (replica, well) in well.iter_mut().enumerate() {
                    let from = at.max(*well);
                    let trouble = match random.below(3) {
                        0 => Trouble::Error(EIO, Calls::All),
                        1 => Trouble::Hang(Calls::Reads),
                        _ => Trouble::Hang(Calls::All),
                    };
                    if from < until {
                        episodes.push(Episode { replica, trouble, from, until });
                        *well = until;
                    }
                }
                at = until;
                next_blackout = at + random.time(15_000, 45_000);
                continue;
            }
            let replica = random.below(menu.replicas as u64) as usize;
            let settled = |other: usize| at >= well[other] + SETTLED || well[other].is_zero();
            let spared = (0..menu.replicas).any(|other| other != replica && settled(other));
            let decides = replica == 0 && at <= diverged_until;
            if well[replica] + Duration::from_millis(50) > at || !spared || decides {
                continue;
            }
            let first_is_settled = at >= well[0] + DECIDES || well[0].is_zero();
            let diverging = menu.diverging.filter(|_| first_is_settled);
            let trouble = Self::trouble_for(replica, &Menu { diverging, ..*menu }, &mut random);
            let until = (at + random.time(300, 9_000)).min(last);
            if trouble == Trouble::Diverged {
                diverged_until = until;
            }
            episodes.push(Episode { replica, trouble, from: at, until });
            well[replica] = until;
        }
        episodes.sort_by_key(|episode| (episode.from, episode.replica));
        Self::new(episodes, menu.replicas)
    }

    fn trouble_for(replica: usize, menu: &Menu, random: &mut Random) -> Trouble {
        let calls = [Calls::Reads, Calls::Reads, Calls::Opens, Calls::Metadata, Calls::All];
        let calls = calls[random.below(5) as usize];
        let errno = [EIO, EIO, ETIMEDOUT, ESTALE, ENOTCONN, ERESTARTSYS][random.below(6) as usize];
        if menu.diverging == Some(replica) && random.below(4) == 0 {
            return Trouble::Diverged;
        }
        // The rest of the schedule is the same if they are impossible.
        if random.below(8) == 0 {
            return if menu.unmounts { Trouble::Unmounted } else { Trouble::Hang(Calls::All) };
        }
        match random.below(12) {
            0..=2 => Trouble::Hang(calls),
            3..=5 => Trouble::Slow([10, 30, 100, 300, 1_000, 3_000][random.below(6) as usize]),
            6 | 7 => Trouble::Error(errno, calls),
            8 => Trouble::Crumbs([100, 1_000, 4_096, 65_536][random.below(4) as usize]),
            9 => Trouble::EndsEarly,
            _ => Trouble::Flap(random.time(40, 1_200), random.below(2) == 0),
        }
    }

    /// Whether some replica is healthy throughout `from` to `until`.
    pub(crate) fn spares(&self, from: Duration, until: Duration) -> bool {
        (0..self.replicas).any(|replica| self.is_well(replica, from, until))
    }

    /// Whether `replica` is healthy throughout that time.
    pub(crate) fn is_well(&self, replica: usize, from: Duration, until: Duration) -> bool {
        !self.episodes.iter().any(|e| e.replica == replica && e.meets(from, until))
    }

    /// The trouble at a time, in a word.
    pub(crate) fn state(&self, at: Duration) -> &'static str {
        let mut now = self.episodes.iter().filter(|episode| episode.meets(at, at));
        match (now.next(), now.next()) {
            (None, _) => "all well",
            (Some(one), None) => one.trouble.name(),
            _ if !self.spares(at, at) => "no healthy replica",
            _ => "several",
        }
    }

    /// All changes of state, in order of time.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for &Episode { replica, trouble, from, until } in &self.episodes {
            let mut push = |at, trouble| events.push(Event { at, replica, trouble });
            let Trouble::Flap(period, hangs) = trouble else {
                push(from, Some(trouble));
                push(until, None);
                continue;
            };
            let bad =
                if hangs { Trouble::Hang(Calls::All) } else { Trouble::Error(EIO, Calls::All) };
            let mut at = from;
            while at < until {
                push(at, Some(bad));
                push((at + period / 2).min(until), None);
                at += period;
            }
        }
        // Of two changes at one time the heal comes first.
        events.sort_by_key(|event| (event.at, event.trouble.is_some()));
        events
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Episode { replica, trouble, from, until } in &self.episodes {
            let (from, until) = (from.as_secs_f64(), until.as_secs_f64());
            writeln!(f, "  {from:8.3} s to {until:8.3} s  r{}  {trouble:?}", replica + 1)?;
        }
        Ok(())
    }
}

/// A small random number generator (xorshift), so that everything repeats.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbouring seeds begin far apart; zero would stay zero.
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    /// An independent generator for another user.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.below(u64::MAX))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }

    /// From `least` to `most` milliseconds; short times are more likely.
    pub(crate) fn time(&mut self, least: u64, most: u64) -> Duration {
        let span = most - least;
        let short = self.below(span + 1).min(self.below(span + 1));
        Duration::from_millis(least + short)
    }
}
