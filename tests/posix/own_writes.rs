//! A handle opened for reading before the write has the new bytes as soon as the write returns: by
//! read, by pread, and in mapped memory.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use super::stamp::{self, BLOCK, Found};
use crate::mapped::{Mapper, Mapping};

/// Initial number of blocks of the file, which are mapped.
const BLOCKS: u64 = 80;

/// The observing handles.
struct Lookers {
    file: File,
    mapped: Option<Mapper>,
}

impl Lookers {
    fn open(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let mapped = match Mapper::of(path, Mapping::Shared) {
            Ok(mapped) => Some(mapped),
            // Some kernels do not map files that are read past the page cache.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => None,
            Err(error) => panic!("mmap: {error}"),
        };
        Self { file, mapped }
    }

    /// All observers see block `index` as this pass wrote it.
    fn expect(&mut self, index: u64, pass: u64, when: &str) {
        let mut block = vec![0; BLOCK as usize];
        self.file.read_exact_at(&mut block, index * BLOCK).unwrap();
        assert_eq!(stamp::check(&block, index, 0..=pass, true), Found::Intact(pass), "{when}");
        self.file.seek(SeekFrom::Start(index * BLOCK)).unwrap();
        self.file.read_exact(&mut block).unwrap();
        assert_eq!(stamp::check(&block, index, 0..=pass, true), Found::Intact(pass), "{when}");
        // Mapped memory behind the end of the mapping may not be touched.
        if let Some(mapped) = self.mapped.as_mut().filter(|_| index < BLOCKS) {
            let block = mapped.read(index * BLOCK, BLOCK).unwrap();
            let found = stamp::check(&block, index, 0..=pass, true);
            assert_eq!(found, Found::Intact(pass), "mapped, {when}");
        }
    }

    fn expect_size(&self, blocks: u64, when: &str) {
        assert_eq!(self.file.metadata().unwrap().len(), blocks * BLOCK, "{when}");
        let mut block = vec![0; BLOCK as usize];
        let behind = self.file.read_at(&mut block, blocks * BLOCK).unwrap();
        assert_eq!(behind, 0, "bytes behind the end, {when}");
    }
}

fn blocks(pass: u64, first: u64, count: u64) -> Vec<u8> {
    let mut content = vec![0; (count * BLOCK) as usize];
    stamp::write(pass, first * BLOCK, &mut content);
    content
}

/// Writes in every way, and checks after each call. Returns whether mapped memory was checked as
/// well.
pub(crate) fn run(dir: &Path) -> bool {
    let path = dir.join("own");
    fs::write(&path, blocks(1, 0, BLOCKS)).unwrap();
    let mut lookers = Lookers::open(&path);
    for index in 0..BLOCKS {
        lookers.expect(index, 1, "before anything was written");
    }

    let writer = File::options().write(true).open(&path).unwrap();
    for pass in 2..40 {
        let index = pass * 7 % BLOCKS;
        writer.write_all_at(&blocks(pass, index, 1), index * BLOCK).unwrap();
        lookers.expect(index, pass, "right after a write");
    }
    writer.write_all_at(&blocks(50, 0, BLOCKS), 0).unwrap();
    for index in [0, 1, BLOCKS / 2, BLOCKS - 1] {
        lookers.expect(index, 50, "right after a large write");
    }
    drop(writer);
    lookers.expect(BLOCKS / 3, 50, "after the writer's close");

    let writer = File::options().append(true).open(&path).unwrap();
    for more in 0..3 {
        std::io::Write::write_all(&mut &writer, &blocks(60, BLOCKS + more, 1)).unwrap();
        lookers.expect(BLOCKS + more, 60, "right after it was appended to");
        lookers.expect_size(BLOCKS + more + 1, "right after it was appended to");
    }
    drop(writer);

    let writer = File::options().write(true).open(&path).unwrap();
    writer.set_len(BLOCKS / 2 * BLOCK).unwrap();
    lookers.expect_size(BLOCKS / 2, "right after it was cut");
    writer.set_len(BLOCKS * BLOCK).unwrap();
    lookers.expect_size(BLOCKS, "right after it was made longer");
    let mut block = vec![1; BLOCK as usize];
    lookers.file.read_exact_at(&mut block, (BLOCKS - 3) * BLOCK).unwrap();
    assert!(block.iter().all(|byte| *byte == 0), "old bytes where it was cut and made longer");
    drop(writer);

    let writer = File::create(&path).unwrap();
    lookers.expect_size(0, "right after it was truncated by an open");
    writer.write_all_at(&blocks(70, 0, BLOCKS), 0).unwrap();
    lookers.expect(BLOCKS - 1, 70, "written again after it was truncated");
    drop(writer);

    // Through the writing handle itself, and through a later handle.
    let both = File::options().read(true).write(true).open(&path).unwrap();
    both.write_all_at(&blocks(80, 5, 1), 5 * BLOCK).unwrap();
    both.read_exact_at(&mut block, 5 * BLOCK).unwrap();
    assert_eq!(stamp::check(&block, 5, 0..=80, true), Found::Intact(80), "by the writer itself");
    Lookers::open(&path).expect(5, 80, "opened beside the writer");
    lookers.expect(5, 80, "written by a handle that reads too");

    // A file that has lost its name is still the same file.
    fs::remove_file(&path).unwrap();
    both.write_all_at(&blocks(90, 6, 1), 6 * BLOCK).unwrap();
    lookers.expect(6, 90, "without a name");
    lookers.mapped.is_some()
}
