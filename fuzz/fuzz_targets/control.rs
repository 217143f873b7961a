//! See `fuzz/checks/control.rs`.

#![no_main]

#[path = "../checks/control.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::check_message(data));
