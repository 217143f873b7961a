//! A client for NFSv3 servers, with which fanfs will read replicas that are not mounted. The program
//! does not use it yet.

pub mod nfs;
