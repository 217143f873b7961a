//! See `fuzz/checks/placement.rs`.

#![no_main]

#[path = "../checks/placement.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::check_answer(data));
