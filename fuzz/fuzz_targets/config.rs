//! See `fuzz/checks/config.rs`.

#![no_main]

#[path = "../checks/config.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::check_volume(data));
