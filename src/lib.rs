pub mod config;
pub mod volume;
