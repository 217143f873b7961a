//! The same message again and again: let through so many times, then counted.
//!
//! A message is known by the place in the source that it comes from. Of each, so many
//! are let through within [`WINDOW`] of the first; the others are left out, and when
//! the window is over one line says how many there were. [`Allowance`] decides, and is
//! told the time; [`Limit`] asks it for every message, and has a thread only while
//! there is something left to be said.
//!
//! *Invariant:* what was left out is said, by the window's end or by [`finish`].

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// What it says of itself; never limited, and let through by the filter.
pub(super) const TARGET: &str = "fanfs::log";

/// For how long messages are counted together.
const WINDOW: Duration = Duration::from_secs(10);

/// A message as long as this is told by its beginning.
const LONGEST: usize = 200;

/// What was left out of one message.
#[derive(Debug, PartialEq, Eq)]
struct Left<T> {
    what: T,
    times: u64,
}

/// How often each message may be let through. There are as many of them as places in
/// the source that log, so this does not grow.
struct Allowance<K, T> {
    most: u32,
    windows: HashMap<K, Window<T>>,
}

struct Window<T> {
    began: Instant,
    passed: u32,
    /// Of this window, and of those before it that nobody has told of.
    left: Option<Left<T>>,
}

impl<K: std::hash::Hash + Eq, T> Allowance<K, T> {
    fn new(most: u32) -> Self {
        Self { most, windows: HashMap::new() }
    }

    /// Whether a message that comes `now` is let through; `what` describes it where it
    /// is not.
    fn allows(&mut self, key: K, now: Instant, what: impl FnOnce() -> T) -> bool {
        let fresh = || Window { began: now, passed: 0, left: None };
        let window = self.windows.entry(key).or_insert_with(fresh);
        if now.saturating_duration_since(window.began) >= WINDOW {
            window.began = now;
            window.passed = 0;
        }
        if window.passed < self.most {
            window.passed += 1;
            return true;
        }
        window.left.get_or_insert_with(|| Left { what: what(), times: 0 }).times += 1;
        false
    }

    /// What was left out in windows that are over, or `all` of it. It is told once.
    fn left(&mut self, now: Instant, all: bool) -> Vec<Left<T>> {
        let over = |window: &&mut Window<T>| {
            let is_fresh = window.passed > 0 && window.passed < self.most;
            all || is_fresh || now.saturating_duration_since(window.began) >= WINDOW
        };
        self.windows.values_mut().filter(over).filter_map(|window| window.left.take()).collect()
    }

    /// When the next window with something left out is over.
    fn next_end(&self) -> Option<Instant> {
        let waiting = self.windows.values().filter(|window| window.left.is_some());
        waiting.map(|window| window.began + WINDOW).min()
    }
}

/// A message, as it is told of later.
struct Message {
    level: Level,
    target: &'static str,
    text: String,
}

type Messages = Allowance<Identifier, Message>;

struct State {
    messages: Messages,
    /// Whether a thread waits to tell.
    is_awaited: bool,
}

/// There is one log in a process.
static STATE: OnceLock<Mutex<State>> = OnceLock::new();

/// Lets no message through more often than it may come.
pub(super) struct Limit {
    is_on: bool,
}

impl Limit {
    /// `most` times within ten seconds; 0: always.
    pub(super) fn new(most: u32) -> Self {
        let state = || Mutex::new(State { messages: Messages::new(most), is_awaited: false });
        STATE.get_or_init(state);
        Self { is_on: most > 0 }
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if !self.is_on || metadata.target() == TARGET {
            return true;
        }
        let Some(state) = STATE.get() else { return true };
        let mut state = state.lock();
        let what = || message(event, metadata);
        let is_allowed = state.messages.allows(metadata.callsite(), Instant::now(), what);
        if !is_allowed && !state.is_awaited {
            // There is no thread before there is need of one: the daemon gives up its
            // privileges thread by thread.
            let thread = std::thread::Builder::new().name("log".to_owned()).spawn(tell_in_time);
            state.is_awaited = thread.is_ok();
        }
        is_allowed
    }
}

fn message(event: &Event<'_>, metadata: &'static Metadata<'static>) -> Message {
    let mut text = Text(String::new());
    event.record(&mut text);
    Message { level: *metadata.level(), target: metadata.target(), text: text.0 }
}

/// The message itself, without its fields.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
            if let Some((end, _)) = self.0.char_indices().nth(LONGEST) {
                self.0.truncate(end);
            }
        }
    }
}

/// Tells what was left out as windows end, until there is nothing left to be told.
fn tell_in_time() {
    let Some(state) = STATE.get() else { return };
    loop {
        let now = Instant::now();
        let left = state.lock().messages.left(now, false);
        left.into_iter().for_each(tell);
        let end = {
            let mut state = state.lock();
            let end = state.messages.next_end();
            state.is_awaited = end.is_some();
            end
        };
        let Some(end) = end else { return };
        std::thread::sleep(end.saturating_duration_since(now).max(Duration::from_millis(10)));
    }
}

/// Tells all that was left out so far.
pub(super) fn finish() {
    let Some(state) = STATE.get() else { return };
    let left = state.lock().messages.left(Instant::now(), true);
    left.into_iter().for_each(tell);
}

fn tell(Left { what, times }: Left<Message>) {
    let Message { level, target, text } = what;
    macro_rules! tell {
        ($level:expr) => {
            tracing::event!(target: TARGET, $level, left_out = times, of = target, "left out {times} more of: {text}")
        };
    }
    match level {
        Level::ERROR => tell!(Level::ERROR),
        Level::WARN => tell!(Level::WARN),
        Level::INFO => tell!(Level::INFO),
        Level::DEBUG => tell!(Level::DEBUG),
        Level::TRACE => tell!(Level::TRACE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds after the beginning at which each of these messages comes; which of them
    /// are let through.
    fn allowed(allowance: &mut Allowance<&str, ()>, t0: Instant, at: &[f64]) -> Vec<bool> {
        let allows = |at: &f64| allowance.allows("a", t0 + Duration::from_secs_f64(*at), || ());
        at.iter().map(allows).collect()
    }

    #[test]
    fn so_many_are_let_through_and_the_others_counted() {
        let (mut allowance, t0) = (Allowance::new(2), Instant::now());
        assert_eq!(allowed(&mut allowance, t0, &[0.0, 1.0, 2.0, 9.9]), [true, true, false, false]);
        assert!(allowance.allows("b", t0, || ()), "another message is none of it");
        assert_eq!(allowance.next_end(), Some(t0 + WINDOW));
        assert_eq!(allowance.left(t0 + Duration::from_secs(9), false), []);
        assert_eq!(allowance.left(t0 + WINDOW, false), [Left { what: (), times: 2 }]);
        assert_eq!(allowance.left(t0 + WINDOW, true), [], "told twice");
        assert_eq!(allowance.next_end(), None);
        assert_eq!(allowed(&mut allowance, t0, &[10.0, 11.0, 12.0]), [true, true, false]);
    }

    #[test]
    fn what_nobody_told_of_in_time_is_told_later() {
        let (mut allowance, t0) = (Allowance::new(2), Instant::now());
        allowed(&mut allowance, t0, &[0.0, 0.0, 1.0, 2.0, 3.0, 20.0]);
        let left = allowance.left(t0 + Duration::from_secs(21), false);
        assert_eq!(left, [Left { what: (), times: 3 }]);
    }

    #[test]
    fn at_the_end_all_is_told() {
        let (mut allowance, t0) = (Allowance::new(1), Instant::now());
        allowed(&mut allowance, t0, &[0.0, 0.0]);
        assert_eq!(allowance.left(t0, true), [Left { what: (), times: 1 }]);
    }
}
