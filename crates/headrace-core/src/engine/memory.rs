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

    /// Return the address of the first byte, and the number of bytes.
    pub(super) fn extent(&self) -> (usize, usize) {
        (self.start as usize, self.slots * self.slot_bytes)
    }

    /// Return `length` bytes from `start` on, whatever the slots.
    ///
    /// # Safety
    /// No other slice of any of these bytes is alive.
    ///
    /// # Panics
    /// If they leave the memory.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, start: usize, length: usize) -> &mut [u8] {
        let end = start.checked_add(length);
        let bytes = self.slots * self.slot_bytes;
        assert!(end.is_some_and(|end| end <= bytes), "{start} of {bytes}");
        // SAFETY: in bounds by the assertion and `new`'s contract; unaliased by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), length) }
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
