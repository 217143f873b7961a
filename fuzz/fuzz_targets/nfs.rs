//! See `crates/nfs/src/nfs/hostile.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fanfs_nfs::nfs::check_server_bytes(data));
