//! The client for NFSv3 servers that fanfs is to read replicas with that are no mounts. The program
//! does not use it yet.

pub mod nfs;
