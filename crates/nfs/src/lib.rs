//! A client for NFSv3 and NFSv4.1 servers, with which fanfs reads replicas that are not mounted.

pub mod nfs;
