//! Limits repeated messages: lets some through, and counts the rest.
//!
//! A message is identified by its place in the source. Within [`WINDOW`] of its first occurrence, a
//! limited number is let through and the others are suppressed. When the window ends, one line
//! reports how many were suppressed. [`RepeatLimiter`] decides; it gets the time as an argument.
//! [`LogThrottle`] asks it about every message, and has a thread only while there is something to
//! report.
//!
//! *Invariant:* every suppressed message is reported, at the end of the window or by
//! [`report_suppressed`].

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

/// The target of the throttle's own reports, which are never limited and always pass the filter.
pub(super) const TARGET: &str = "fanfs::log";

/// The time in which messages are counted together.
const WINDOW: Duration = Duration::from_secs(10);

/// The most characters of a message that a report repeats.
const MAX_MESSAGE_CHARS: usize = 200;

/// A message that was suppressed, and how often.
#[derive(Debug, PartialEq, Eq)]
struct Suppressed<T> {
    message: T,
    times: u64,
}

/// How often each message was let through. It has at most one entry for each place in the source
/// that logs, so its size is bounded.
struct RepeatLimiter<K, T> {
    max_per_window: u32,
    windows: HashMap<K, Window<T>>,
}

struct Window<T> {
    started: Instant,
    passed: u32,
    /// Suppressed in this window, and in earlier ones that are not reported yet.
    suppressed: Option<Suppressed<T>>,
}

impl<K: std::hash::Hash + Eq, T> RepeatLimiter<K, T> {
    fn new(most: u32) -> Self {
        Self { max_per_window: most, windows: HashMap::new() }
    }

    /// Whether a message at time `now` is let through. If it is not, `what` describes it for the
    /// report.
    fn allows(&mut self, key: K, now: Instant, what: impl FnOnce() -> T) -> bool {
        let fresh = || Window { started: now, passed: 0, suppressed: None };
        let window = self.windows.entry(key).or_insert_with(fresh);
        if now.saturating_duration_since(window.started) >= WINDOW {
            window.started = now;
            window.passed = 0;
        }
        if window.passed < self.max_per_window {
            window.passed += 1;
            return true;
        }
        window.suppressed.get_or_insert_with(|| Suppressed { message: what(), times: 0 }).times +=
            1;
        false
    }

    /// Takes the suppressed messages of windows that are over, or in `all`. Each is returned once.
    fn take_suppressed(&mut self, now: Instant, all: bool) -> Vec<Suppressed<T>> {
        let over = |window: &&mut Window<T>| {
            let is_fresh = window.passed > 0 && window.passed < self.max_per_window;
            all || is_fresh || now.saturating_duration_since(window.started) >= WINDOW
        };
        self.windows
            .values_mut()
            .filter(over)
            .filter_map(|window| window.suppressed.take())
            .collect()
    }

    /// The earliest end of the windows in which something was suppressed.
    fn next_window_end(&self) -> Option<Instant> {
        let waiting = self.windows.values().filter(|window| window.suppressed.is_some());
        waiting.map(|window| window.started + WINDOW).min()
    }
}

/// A message, as it is reported later.
struct Message {
    level: Level,
    target: &'static str,
    text: String,
}

type MessageLimiter = RepeatLimiter<Identifier, Message>;

struct ThrottleState {
    messages: MessageLimiter,
    /// Whether a reporting thread runs.
    has_reporter: bool,
}

/// A process has one log.
static STATE: OnceLock<Mutex<ThrottleState>> = OnceLock::new();

/// The tracing layer that suppresses repeated messages.
pub(super) struct LogThrottle {
    is_on: bool,
}

impl LogThrottle {
    /// `most` messages in ten seconds; 0 for no limit.
    pub(super) fn new(most: u32) -> Self {
        let state = || {
            Mutex::new(ThrottleState { messages: MessageLimiter::new(most), has_reporter: false })
        };
        STATE.get_or_init(state);
        Self { is_on: most > 0 }
    }
}

impl<S: Subscriber> Layer<S> for LogThrottle {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if !self.is_on || metadata.target() == TARGET {
            return true;
        }
        let Some(state) = STATE.get() else { return true };
        let mut state = state.lock();
        let what = || capture_message(event, metadata);
        let is_allowed = state.messages.allows(metadata.callsite(), Instant::now(), what);
        if !is_allowed && !state.has_reporter {
            // The thread starts only when it is needed, because the daemon gives up its privileges
            // while it has one thread.
            let thread =
                std::thread::Builder::new().name("log".to_owned()).spawn(report_until_empty);
            state.has_reporter = thread.is_ok();
        }
        is_allowed
    }
}

fn capture_message(event: &Event<'_>, metadata: &'static Metadata<'static>) -> Message {
    let mut text = MessageText(String::new());
    event.record(&mut text);
    Message { level: *metadata.level(), target: metadata.target(), text: text.0 }
}

/// The message without its fields.
struct MessageText(String);

impl Visit for MessageText {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
            if let Some((end, _)) = self.0.char_indices().nth(MAX_MESSAGE_CHARS) {
                self.0.truncate(end);
            }
        }
    }
}

/// Reports suppressed messages as their windows end, until none are left.
fn report_until_empty() {
    let Some(state) = STATE.get() else { return };
    loop {
        let now = Instant::now();
        let left = state.lock().messages.take_suppressed(now, false);
        left.into_iter().for_each(report);
        let end = {
            let mut state = state.lock();
            let end = state.messages.next_window_end();
            state.has_reporter = end.is_some();
            end
        };
        let Some(end) = end else { return };
        std::thread::sleep(end.saturating_duration_since(now).max(Duration::from_millis(10)));
    }
}

/// Reports all messages suppressed so far.
pub(super) fn report_suppressed() {
    let Some(state) = STATE.get() else { return };
    let left = state.lock().messages.take_suppressed(Instant::now(), true);
    left.into_iter().for_each(report);
}

fn report(Suppressed { message: what, times }: Suppressed<Message>) {
    let Message { level, target, text } = what;
    macro_rules! tell {
        ($level:expr) => {
            tracing::event!(target: TARGET, $level, left_out = times, of = target, "suppressed {times} more of: {text}")
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

    /// Returns for each time, in seconds since the start, whether its message is let through.
    fn allowed(allowance: &mut RepeatLimiter<&str, ()>, t0: Instant, at: &[f64]) -> Vec<bool> {
        let allows = |at: &f64| allowance.allows("a", t0 + Duration::from_secs_f64(*at), || ());
        at.iter().map(allows).collect()
    }

    #[test]
    fn repeats_above_the_limit_are_suppressed_and_counted() {
        let mut allowance = RepeatLimiter::new(2);
        let t0 = Instant::now();
        assert_eq!(allowed(&mut allowance, t0, &[0.0, 1.0, 2.0, 9.9]), [true, true, false, false]);
        assert!(allowance.allows("b", t0, || ()), "another message is none of it");
        assert_eq!(allowance.next_window_end(), Some(t0 + WINDOW));
        assert_eq!(allowance.take_suppressed(t0 + Duration::from_secs(9), false), []);
        assert_eq!(
            allowance.take_suppressed(t0 + WINDOW, false),
            [Suppressed { message: (), times: 2 }]
        );
        assert_eq!(allowance.take_suppressed(t0 + WINDOW, true), [], "reported twice");
        assert_eq!(allowance.next_window_end(), None);
        assert_eq!(allowed(&mut allowance, t0, &[10.0, 11.0, 12.0]), [true, true, false]);
    }

    #[test]
    fn overdue_suppression_counts_are_reported_later() {
        let mut allowance = RepeatLimiter::new(2);
        let t0 = Instant::now();
        allowed(&mut allowance, t0, &[0.0, 0.0, 1.0, 2.0, 3.0, 20.0]);
        let left = allowance.take_suppressed(t0 + Duration::from_secs(21), false);
        assert_eq!(left, [Suppressed { message: (), times: 3 }]);
    }

    #[test]
    fn all_suppressed_counts_are_reported_at_the_end() {
        let mut allowance = RepeatLimiter::new(1);
        let t0 = Instant::now();
        allowed(&mut allowance, t0, &[0.0, 0.0]);
        assert_eq!(allowance.take_suppressed(t0, true), [Suppressed { message: (), times: 1 }]);
    }
}
