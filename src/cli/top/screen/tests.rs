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
fn a_screen_of_80_by_24_shows_all_essential_values() {
    let screen = draw(&view(), &shown(), 80, 24).join("\n");
    for word in [
        "fanfs top",
        "app read      390.0 MiB/s",
        "390 reads/s, average 1.0 MiB, readahead hits 50%",
        "p50 -, p99 -, metadata 0/s",
        "replica read  400.0 MiB/s",
        "hedged reads 2.0/s (25% answered first), retries 0/s",
        "duplicate reads 2.50%",
        "queue             2 reads  0 metadata calls, 3 segments, 12 in flight",
        "buffers          64.0 MiB  of 256.0 MiB [#####               ], 2 open handles",
        "REPLICA",
        "HEALTH",
        "MiB/s",
        "SHARE",
        "EST. BW",
        "P50/P99",
        "SLOW/s",
        "LIMIT MiB",
        "4.0/8.0",
        "(9 x 1s)",
        "300.0",
        "75%",
        "a/large.bam",
        "40 dd",
        "READERS",
        "COMMAND",
        "q quit",
    ] {
        assert!(screen.contains(word), "{word:?} is not in\n{screen}");
    }
    assert!(screen.contains("█"), "the history is not drawn\n{screen}");
}

#[test]
fn a_wide_screen_shows_all_columns_and_each_total_on_one_line() {
    let mut view = view();
    // Nodes with the names of their replicas have no column.
    assert!(!draw(&view, &shown(), 200, 50).join("\n").contains("NODE"));
    view.replicas[1].node = "gateway2".to_owned();
    let narrow = draw(&view, &shown(), 80, 24).join("\n");
    let wide = draw(&view, &shown(), 200, 50).join("\n");
    for word in ["HUNG", "THREADS", "NODE", "[##########]"] {
        assert!(!narrow.contains(word) && wide.contains(word), "{word:?}\n{narrow}\n{wide}");
    }
    assert!(wide.contains("retries 0/s, duplicate reads 2.50%"), "{wide}");
}

#[test]
fn a_tall_screen_shows_more_replicas() {
    let mut view = view();
    view.replicas = (0..64).map(|_| view.replicas[0].clone()).collect();
    for (height, range) in [(24, "1-6 of 64"), (50, "1-31 of 64")] {
        let screen = draw(&view, &shown(), 80, height).join("\n");
        assert!(screen.contains(&format!(" replicas {range}; [ ] scroll")), "{screen}");
        assert!(screen.contains("a/large.bam") && screen.contains("40 dd"), "{screen}");
    }
}

#[test]
fn a_low_screen_leaves_out_the_second_parts_of_totals() {
    let screen = draw(&view(), &shown(), 60, 10).join("\n");
    assert!(screen.contains("replica read") && !screen.contains("duplicate"), "{screen}");
    assert!(screen.contains("\nn1 ") && screen.contains("q quit"), "{screen}");
}

#[test]
fn every_screen_size_can_be_drawn() {
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
fn an_unhealthy_replica_is_highlighted_and_first_when_sorted_by_health() {
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
fn names_cannot_move_the_cursor_and_long_ones_are_truncated() {
    let mut view = view();
    view.files[0].path = format!("evil\x1b[2J\n{}end", "x".repeat(500));
    let text = render_text(&view, 80);
    assert!(!text.contains('\x1b'), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("xend "), "{text}");
}

#[test]
fn a_silent_daemon_is_reported() {
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
