//! Aligned buffers in power-of-two sizes, kept for reuse.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Budget, Reservation};
use crate::memory_headroom;

/// Alignment and smallest size: a page, as O_DIRECT reads of a replica require.
const PAGE_SIZE: usize = 4096;

/// The cost of a buffer for `len` bytes: the next power of two, at least a page. Reservations are
/// made in these sizes.
pub fn size_class(len: u64) -> u64 {
    len.max(PAGE_SIZE as u64).next_power_of_two()
}

/// A pool of buffers of all sizes for one budget.
#[derive(Clone)]
pub struct BufferPool {
    inner: Arc<PoolInner>,
}

struct PoolInner {
    budget: Budget,
    idle: Mutex<IdleBlocks>,
}

/// Blocks kept for reuse, by the power of two of their size.
#[derive(Default)]
struct IdleBlocks {
    bytes: u64,
    /// Bytes of all blocks, in use or kept.
    allocated: u64,
    classes: Vec<Vec<Block>>,
}

/// One allocation, fully initialized.
struct Block {
    memory: NonNull<u8>,
    layout: Layout,
    /// Whether it is a mapping of its own.
    is_mapped: bool,
}

/// Blocks of this size and above are mapped, so that freeing one returns its memory to the system.
/// The allocator would keep it: with 256 readers, whose windows' blocks came and went in several
/// sizes, it held 100 MiB beyond a budget of 256. Small blocks are not mapped: the kernel allows
/// 65530 mappings.
const MIN_MAPPED_BYTES: usize = 128 * 1024;

// SAFETY: a block is the only owner of its allocation, which no thread is tied to.
unsafe impl Send for Block {}
// SAFETY: through a shared reference a block exposes nothing that can be written.
unsafe impl Sync for Block {}

impl Block {
    /// `None` if there is no memory.
    fn new(bytes: usize) -> Option<Self> {
        let layout =
            Layout::from_size_align(bytes, PAGE_SIZE).expect("a buffer size fits a layout");
        if bytes >= MIN_MAPPED_BYTES {
            return memory_headroom::try_map(bytes).map(|memory| Self {
                memory,
                layout,
                is_mapped: true,
            });
        }
        // SAFETY: the size is a power of two of at least a page, so not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        Some(Self { memory: NonNull::new(memory)?, layout, is_mapped: false })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let memory = self.memory.as_ptr();
        if self.is_mapped {
            // SAFETY: mapped for `new` with this size and unmapped only here.
            let unmapped = unsafe { rustix::mm::munmap(memory.cast(), self.layout.size()) };
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        } else {
            // SAFETY: allocated in `new` with this layout and freed only here.
            unsafe { dealloc(memory, self.layout) }
        }
    }
}

impl BufferPool {
    /// A pool that keeps no more than `budget` has unclaimed.
    pub fn new(budget: Budget) -> Self {
        Self { inner: Arc::new(PoolInner { budget, idle: Mutex::default() }) }
    }

    /// The budget that pays for the buffers.
    pub fn budget(&self) -> &Budget {
        &self.inner.budget
    }

    /// A buffer of `len` bytes, page aligned, paid for by `claim`. Its content is arbitrary.
    ///
    /// # Errors
    /// Returns the claim if the system has no memory and the pool has none kept.
    ///
    /// # Panics
    /// If `claim` is below the size class of `len`.
    pub fn allocate(&self, len: usize, claim: Reservation) -> Result<Buffer, Reservation> {
        let class = size_class(len as u64);
        assert!(claim.bytes() >= class, "a buffer of {class} bytes paid with {}", claim.bytes());
        let mut idle = self.inner.idle.lock();
        let block = match idle.pop(class) {
            Some(block) => block,
            None => {
                let room = self.inner.budget.limit().saturating_sub(self.inner.budget.used());
                let excess = idle.shrink_to(room);
                idle.allocated += class;
                drop(idle);
                drop(excess);
                match Block::new(class as usize).or_else(|| self.evict_idle_for(class)) {
                    Some(block) => block,
                    None => {
                        self.inner.idle.lock().allocated -= class;
                        return Err(claim);
                    }
                }
            }
        };
        Ok(Buffer { block: Some(block), len, pool: Arc::clone(&self.inner), claim })
    }

    /// Frees all kept blocks to make room for a block of another size.
    #[cold]
    fn evict_idle_for(&self, class: u64) -> Option<Block> {
        let kept = self.inner.idle.lock().shrink_to(0);
        drop(kept);
        Block::new(class as usize)
    }

    /// Frees kept blocks that exceed the unclaimed budget: something other than a buffer has been
    /// paid for.
    pub fn trim_idle(&self) {
        let mut idle = self.inner.idle.lock();
        let room = self.inner.budget.limit().saturating_sub(self.inner.budget.used());
        let excess = idle.shrink_to(room);
        drop(idle);
        drop(excess);
    }

    /// Bytes of memory that all buffers occupy, in use or kept for reuse.
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.idle.lock().allocated
    }

    /// Bytes kept for reuse.
    pub fn idle_bytes(&self) -> u64 {
        self.inner.idle.lock().bytes
    }
}

impl IdleBlocks {
    fn pop(&mut self, class: u64) -> Option<Block> {
        let block = self.classes.get_mut(class.trailing_zeros() as usize)?.pop()?;
        self.bytes -= class;
        Some(block)
    }

    fn push(&mut self, block: Block) {
        let class = block.layout.size().trailing_zeros() as usize;
        if self.classes.len() <= class {
            self.classes.resize_with(class + 1, Vec::new);
        }
        self.bytes += block.layout.size() as u64;
        self.classes[class].push(block);
    }

    /// Removes blocks until `bytes` are left; the caller frees them, unlocked.
    fn shrink_to(&mut self, bytes: u64) -> Vec<Block> {
        let mut excess = Vec::new();
        for class in &mut self.classes {
            while self.bytes > bytes {
                let Some(block) = class.pop() else { break };
                self.bytes -= block.layout.size() as u64;
                self.allocated -= block.layout.size() as u64;
                excess.push(block);
            }
        }
        excess
    }
}

/// A page-aligned buffer beside the budget, for a fixed number of threads that each use one again
/// and again. Pages that were never used take no memory.
pub struct ScratchBuffer(Block);

impl ScratchBuffer {
    /// A buffer of `len` bytes, a power of two of at least a page; `None` if there is no memory.
    pub fn new(len: usize) -> Option<Self> {
        Block::new(len).map(Self)
    }
}

impl Deref for ScratchBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block is initialized and of this length, and it is written only through
        // `&mut self`.
        unsafe { std::slice::from_raw_parts(self.0.memory.as_ptr(), self.0.layout.size()) }
    }
}

impl DerefMut for ScratchBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.0.memory.as_ptr(), self.0.layout.size()) }
    }
}

/// Memory for file data, with the claim that pays for it.
pub struct Buffer {
    /// `Some` until dropped.
    block: Option<Block>,
    len: usize,
    pool: Arc<PoolInner>,
    // Declared after `block`: the memory is returned before its claim.
    claim: Reservation,
}

impl Buffer {
    /// Returns the memory and keeps the claim.
    pub fn into_claim(mut self) -> Reservation {
        let all = self.claim.bytes();
        self.claim.split(all)
    }

    fn memory(&self) -> NonNull<u8> {
        self.block.as_ref().expect("a buffer has its block until it is dropped").memory
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the block is initialized and at least `len` bytes long, and it is written only
        // through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.memory().as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.memory().as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        let mut idle = self.pool.idle.lock();
        // This claim still counts as used. The kept blocks must fit beside the other claims once it
        // is returned.
        let others = self.pool.budget.used().saturating_sub(self.claim.bytes());
        idle.push(block);
        let excess = idle.shrink_to(self.pool.budget.limit().saturating_sub(others));
        drop(idle);
        drop(excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(limit: u64) -> BufferPool {
        BufferPool::new(Budget::new(limit))
    }

    fn take(pool: &BufferPool, len: usize) -> Buffer {
        let claim = pool.budget().claim(size_class(len as u64)).unwrap();
        pool.allocate(len, claim).map_err(|_| "no memory").unwrap()
    }

    #[test]
    fn buffers_are_page_aligned_and_reused() {
        let pool = pool(1 << 20);
        let mut first = take(&pool, 5000);
        assert_eq!(first.as_ptr() as usize % PAGE_SIZE, 0);
        assert_eq!(first.len(), 5000);
        first.fill(7);
        let address = first.as_ptr();
        drop(first);
        assert_eq!(pool.idle_bytes(), 8192);
        let second = take(&pool, 8000);
        assert_eq!(second.as_ptr(), address);
        assert_eq!(pool.idle_bytes(), 0);
    }

    #[test]
    fn pooled_and_used_buffers_stay_within_the_budget() {
        let limit = 64 * 1024;
        let pool = pool(limit);
        let small: Vec<_> = (0..16).map(|_| take(&pool, 4096)).collect();
        drop(small);
        assert_eq!(pool.idle_bytes(), limit);
        let large = take(&pool, 32 * 1024);
        assert!(pool.allocated_bytes() <= limit);
        drop(large);
        assert!(pool.idle_bytes() <= limit);
        assert_eq!(pool.budget().used(), 0);
    }

    #[test]
    #[should_panic(expected = "paid with")]
    fn a_buffer_needs_a_budget_claim() {
        let pool = pool(1 << 20);
        let claim = pool.budget().claim(4096).unwrap();
        let _ = pool.allocate(4097, claim);
    }
}
