use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::*;
use crate::cli::top::delta::tests::view;

fn draw(view: &View, shown: &DisplayState, width: u16, height: u16) -> Vec<String> {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    let mut history = History::default();
    (0..100).for_each(|_| history.add(view));
    let screen = Screen {
        view: Some(view),
        history: &history,
        display: shown,
        silent_for: Duration::ZERO,
        last_error: None,
    };
    screen.draw(area, &mut buffer);
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(row).collect()
}

fn shown() -> DisplayState {
    DisplayState::new(Duration::from_secs(1), 1)
}

#[test]
fn everything_has_its_place_in_80_by_24() {
    let screen = draw(&view(), &shown(), 80, 24).join("\n");
    for word in [
        "fanfs top",
        "390.0 MiB/s",
        "hits 50%",
        "hedges 2.0/s (25% won)",
        "twice 2.50%",
        "REPLICA",
        "HEALTH",
        "NOW/s",
        "SHARE",
        "LOAD",
        "P99",
        "BAD/s",
        "300.0M",
        "75%",
        "a/large.bam",
        "40 dd",
        "READERS",
        "q end",
    ] {
        assert!(screen.contains(word), "{word:?} is not in\n{screen}");
    }
    assert!(screen.contains("█"), "the past is not drawn\n{screen}");
}

#[test]
fn more_room_shows_more() {
    let narrow = draw(&view(), &shown(), 80, 24).join("\n");
    let wide = draw(&view(), &shown(), 200, 50).join("\n");
    assert!(!narrow.contains("EXPECTED") && wide.contains("EXPECTED"));
    assert!(wide.contains("IN FLIGHT") && wide.contains("STUCK") && wide.contains("NODE"));
}

#[test]
fn no_size_is_too_small_to_draw() {
    let mut view = view();
    view.replicas = (0..64).map(|_| view.replicas[0].clone()).collect();
    for (width, height) in [(1, 1), (59, 30), (60, 10), (61, 11), (80, 12), (300, 10), (300, 100)] {
        for panel in [Panel::Both, Panel::Files, Panel::Readers] {
            for is_help in [false, true] {
                let mut shown = shown();
                shown.panel = panel;
                shown.is_help_shown = is_help;
                draw(&view, &shown, width, height);
            }
        }
    }
}

#[test]
fn who_is_ill_is_marked_and_comes_first_by_health() {
    let mut view = view();
    view.replicas[2].health = HealthState::Ejected;
    let mut shown = shown();
    shown.order = SortOrder::Health;
    let screen = draw(&view, &shown, 100, 30);
    let place = |name: &str| screen.iter().position(|line| line.starts_with(name)).unwrap();
    assert!(place("n3") < place("n1"));
    assert!(screen[place("n3")].contains("EJECTED"));
}

#[test]
fn names_cannot_move_the_cursor_and_long_ones_are_cut() {
    let mut view = view();
    view.files[0].path = format!("evil\x1b[2J\n{}end", "x".repeat(500));
    let text = render_text(&view, 80);
    assert!(!text.contains('\x1b'), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("xend "), "{text}");
}

#[test]
fn a_silent_daemon_is_seen() {
    let view = view();
    let screen = Screen {
        view: Some(&view),
        history: &History::default(),
        display: &shown(),
        silent_for: Duration::from_secs(12),
        last_error: None,
    };
    assert!(screen.title_line(&view, 100).to_string().contains("NO ANSWER for 12 s"));
}
