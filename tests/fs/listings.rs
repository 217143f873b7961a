//! The pages of listings with attributes.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use fanfs::backend::{DirBackend, RequestContext};
use fanfs::config::CachePolicy;
use fanfs::fs::{ROOT, entry_bytes};

use crate::{LONG, VolumeSetup, answer, volume_with_setup};

const FILES: usize = 1000;

/// The most entries that have attributes without demand.
const FIRST_ENTRIES: usize = 32;

#[test]
fn every_page_fits_its_reply_and_no_name_is_lost() {
    let me = RequestContext::DAEMON;
    let tree = tempfile::tempdir().unwrap();
    let files: BTreeSet<_> = (0..FILES).map(|i| format!("{i:0$}", 1 + i % 250)).collect();
    files.iter().for_each(|name| drop(File::create(tree.path().join(name)).unwrap()));
    for attribute_ttl in [Duration::ZERO, LONG] {
        for room in [4096, 32 << 10] {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let backend = Arc::new(DirBackend::open(tree.path()).unwrap());
            let setup = VolumeSetup { attribute_ttl, ..VolumeSetup::new(CachePolicy::Direct) };
            let fs = volume_with_setup(vec![backend], &setup, &runtime).fs;
            let dir = answer(fs.namespace.opendir(me, ROOT));
            let (mut offset, mut names, mut with_attrs) = (0, Vec::new(), 0);
            loop {
                let page = answer(fs.namespace.readdirplus(me, dir, offset, || room));
                let Some(last) = page.entries.last() else { break };
                let bytes: usize = page.entries.iter().map(|entry| entry_bytes(&entry.name)).sum();
                let is_first = offset == 0 && page.entries.len() <= FIRST_ENTRIES;
                assert!(is_first || bytes <= room, "{bytes} of {room} from {offset}");
                offset = last.next_offset;
                with_attrs += page.entries.iter().filter(|e| e.entry_attr.is_some()).count();
                names.extend(
                    page.entries.into_iter().map(|entry| entry.name.into_string().unwrap()),
                );
            }
            assert_eq!(names.len(), FILES);
            assert!(names.into_iter().collect::<BTreeSet<_>>() == files);
            // Without a lifetime the kernel asks for attributes again in any case.
            let expected = if attribute_ttl.is_zero() { 0 } else { FIRST_ENTRIES };
            assert_eq!(with_attrs, expected);
            fs.open_files.release(dir);
        }
    }
}
