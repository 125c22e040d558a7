//! Batch memory that threads share: a raw slice, divided into slots.
#![allow(unsafe_code)]

/// A block of memory that several threads fill, each in its own slots.
#[derive(Debug, Clone, Copy)]
pub struct BatchMemory {
    start: *mut u8,
    slot_bytes: usize,
    slots: usize,
}

// SAFETY: the pointer is only used through `slot`, whose contract forbids two live slices of one slot.
unsafe impl Send for BatchMemory {}
// SAFETY: as above.
unsafe impl Sync for BatchMemory {}

impl BatchMemory {
    /// Make the memory of `slots` slots of `slot_bytes` bytes each, from `start` on.
    ///
    /// # Safety
    /// `start` points to at least `slots * slot_bytes` initialised bytes that stay valid, and that nobody else writes, as long
    /// as this value or a copy of it is used.
    pub unsafe fn new(start: *mut u8, slot_bytes: usize, slots: usize) -> Self {
        BatchMemory {
            start,
            slot_bytes,
            slots,
        }
    }

    /// Return the number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Return the bytes of slot `number`.
    ///
    /// # Safety
    /// No other slice of the same slot is alive.
    ///
    /// # Panics
    /// If there is no such slot.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slot(&self, number: usize) -> &mut [u8] {
        assert!(number < self.slots, "slot {number} of {}", self.slots);
        // SAFETY: in bounds by the assertion and `new`'s contract; unaliased by this function's contract.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start.add(number * self.slot_bytes),
                self.slot_bytes,
            )
        }
    }
}
