//! The outcome of one image: a status number for Python, with a name and a message.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::{fmt, io};

use rustix::io::Errno;

/// Why an image could not be decoded; `Ok` is 0. Numbers are part of the Python interface and never change meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Status {
    /// The image was decoded.
    Ok = 0,
    /// No bytes at all.
    Empty = 1,
    /// The bytes are not in an image format that headrace reads.
    UnknownFormat = 2,
    /// The data ends before the image does.
    Truncated = 3,
    /// A header segment contradicts itself or the standard.
    CorruptHeader = 4,
    /// A Huffman or quantisation table that the scan needs is missing.
    MissingTable = 5,
    /// The entropy-coded data is damaged.
    CorruptData = 6,
    /// Restart markers are missing, out of order, or do not fit the restart interval.
    BadRestart = 7,
    /// A valid file of a kind that is not supported.
    Unsupported = 8,
    /// Larger than the pixel limit or the memory, or too large for its bytes ([`crate::limits`]).
    TooLarge = 9,
    /// The crop box is empty or leaves the image.
    BadBox = 10,
    /// The JPEG index does not fit its image.
    BadIndex = 11,
    /// The file could not be read.
    Io = 12,
    /// A fault of headrace (a panic, which is caught).
    Internal = 13,
    /// The image is too small for an operation of the transform.
    TooSmall = 14,
    /// The mask of the image is not a PNG of 8-bit gray samples or palette indices.
    BadMask = 15,
    /// The mask has another size than the image.
    MaskSize = 16,
    /// The bytes of a packed record are not those that were packed.
    Checksum = 17,
    /// The random numbers of the image are not known yet: those of an earlier one of its stream are missing.
    NotDrawn = 18,
    /// This process, or the machine, may open no more files. The record itself may be undamaged.
    OpenFiles = 19,
    /// The system failed: an input/output error, or too little memory. The record itself may be undamaged.
    System = 20,
}

impl Status {
    /// Every status, in the order of its number.
    pub const ALL: [Status; 21] = [
        Status::Ok,
        Status::Empty,
        Status::UnknownFormat,
        Status::Truncated,
        Status::CorruptHeader,
        Status::MissingTable,
        Status::CorruptData,
        Status::BadRestart,
        Status::Unsupported,
        Status::TooLarge,
        Status::BadBox,
        Status::BadIndex,
        Status::Io,
        Status::Internal,
        Status::TooSmall,
        Status::BadMask,
        Status::MaskSize,
        Status::Checksum,
        Status::NotDrawn,
        Status::OpenFiles,
        Status::System,
    ];

    /// Return what a failed read says: about the system where the record cannot be the reason, else [`Status::Io`].
    pub fn of_read(error: &io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE | Errno::NFILE) => Status::OpenFiles,
            Some(Errno::IO | Errno::NOMEM) => Status::System,
            _ if error.kind() == io::ErrorKind::OutOfMemory => Status::System,
            _ => Status::Io,
        }
    }

    /// Return the message for users.
    pub fn message(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Empty => "the file is empty",
            Status::UnknownFormat => "not an image in a format that headrace reads",
            Status::Truncated => "the image data ends too early (truncated file)",
            Status::CorruptHeader => "a header of the image is damaged",
            Status::MissingTable => "a Huffman or quantisation table is missing",
            Status::CorruptData => "the compressed image data is damaged",
            Status::BadRestart => "restart markers are missing or out of order",
            Status::Unsupported => "a valid image of a kind that headrace does not decode",
            Status::TooLarge => {
                "the image is larger than the pixel limit, its bytes or the memory allow"
            }
            Status::BadBox => "the crop box is empty or leaves the image",
            Status::BadIndex => "the JPEG index does not fit its image",
            Status::Io => "the file could not be read",
            Status::TooSmall => "the image is too small for an operation of the transform",
            Status::BadMask => "its mask is not a sound PNG of 8-bit gray or palette indices",
            Status::NotDrawn => "its random numbers are not drawn yet",
            Status::Checksum => "its bytes differ from the checksum in the index (damaged shard)",
            Status::MaskSize => "its mask and the image differ in size",
            Status::OpenFiles => "too many open files",
            Status::System => "the system could not read it (an input/output error, or no memory)",
            Status::Internal => "internal error in headrace (please report it)",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Status {}

/// A result whose error is the image's status.
pub type Result<T> = std::result::Result<T, Status>;

/// Run `work` on one image; a panic in it is [`Status::Internal`]. Memory that `work` was changing may be in any state then: the
/// caller replaces it.
pub fn or_internal<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Status::Internal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_system_is_no_bad_record() {
        let status = |code: Errno| Status::of_read(&io::Error::from(code));
        assert_eq!(
            [Errno::MFILE, Errno::NFILE].map(status),
            [Status::OpenFiles; 2]
        );
        assert_eq!([Errno::IO, Errno::NOMEM].map(status), [Status::System; 2]);
        assert_eq!([Errno::NOENT, Errno::ACCESS].map(status), [Status::Io; 2]);
        assert_eq!(
            Status::of_read(&io::ErrorKind::OutOfMemory.into()),
            Status::System
        );
    }

    #[test]
    fn a_panic_is_an_internal_error() {
        assert_eq!(or_internal(|| Ok(3)), Ok(3));
        assert_eq!(
            or_internal(|| Err::<u8, _>(Status::BadBox)),
            Err(Status::BadBox)
        );
        let broken = || -> Result<u8> { panic!("provoked by a test") };
        assert_eq!(or_internal(broken), Err(Status::Internal));
    }
}
