//! A client for NFSv3 servers, with which fanfs reads replicas that are not mounted.

pub mod nfs;
