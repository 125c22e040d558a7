//! Read a whole image file in as few system calls as possible, and never wait for a file that is none.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Result, Status};
use crate::limits::record_bytes;
use crate::regular_file;

/// Read the regular file at `path` into `bytes`, replacing its contents: one open, one look at its size, one read, one close.
///
/// Errors: [`Status::Io`] if there is no such file, if it cannot be read, is larger than [`record_bytes`], or is a pipe, device,
/// socket or folder; [`Status::OpenFiles`] and [`Status::System`] where the system failed.
pub fn read_file(path: &Path, bytes: &mut Vec<u8>) -> Result<()> {
    read(path, bytes).map_err(|error| Status::of_read(&error))
}

fn read(path: &Path, bytes: &mut Vec<u8>) -> io::Result<()> {
    let (file, facts) = regular_file::open(path)?;
    let size = usize::try_from(facts.len()).map_err(io::Error::other)?;
    if size == 0 {
        // Some file systems state no size.
        bytes.clear();
        file.take(record_bytes() + 1).read_to_end(bytes)?;
        return within_limit(bytes.len());
    }
    within_limit(size)?;
    make_room(bytes, size)?;
    let read = read_up_to(&file, bytes)?;
    bytes.truncate(read); // a file that shrank meanwhile
    Ok(())
}

/// Refuse a size above [`record_bytes`]: a sparse file takes no disk, and its zeros take memory.
pub fn within_limit(size: usize) -> io::Result<()> {
    if size as u64 > record_bytes() {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(())
}

/// Give `bytes` this length; what is new is zero.
pub fn make_room(bytes: &mut Vec<u8>, size: usize) -> io::Result<()> {
    if bytes.len() < size {
        bytes
            .try_reserve(size - bytes.len())
            .map_err(|_| io::ErrorKind::OutOfMemory)?;
    }
    bytes.resize(size, 0);
    Ok(())
}

/// Fill `bytes` from the start of the file; return the number of bytes that there were.
fn read_up_to(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut at = 0;
    while at < bytes.len() {
        match file.read_at(&mut bytes[at..], at as u64) {
            Ok(0) => break,
            Ok(read) => at += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let folder = std::env::temp_dir().join(format!("headrace-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let path = folder.join("image");
        std::fs::write(&path, b"0123456789").expect("written");
        let mut bytes = vec![7; 100];
        assert_eq!(read_file(&path, &mut bytes), Ok(()));
        assert_eq!(bytes, b"0123456789");
        std::fs::write(&path, b"").expect("written");
        assert_eq!(read_file(&path, &mut bytes), Ok(()));
        assert_eq!(bytes, b"");
        assert_eq!(read_file(&folder, &mut bytes), Err(Status::Io));
        assert_eq!(
            read_file(Path::new("/dev/zero"), &mut bytes),
            Err(Status::Io)
        );
        let pipe = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.is_ok_and(|status| status.success()), "a pipe");
        assert_eq!(read_file(&pipe, &mut bytes), Err(Status::Io)); // and does not wait
        std::fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(read_file(&path, &mut bytes), Err(Status::Io));
    }

    #[test]
    fn a_sparse_file_is_not_read() {
        let path = std::env::temp_dir().join(format!("headrace-sparse-{}", std::process::id()));
        let file = File::create(&path).expect("made");
        file.set_len(record_bytes() + 1).expect("sparse");
        let mut bytes = Vec::new();
        assert_eq!(read_file(&path, &mut bytes), Err(Status::Io));
        assert_eq!(bytes.capacity(), 0);
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn files_that_state_no_size_are_read_to_their_end() {
        let mut bytes = Vec::new();
        if Path::new("/proc/self/status").exists() {
            assert_eq!(
                read_file(Path::new("/proc/self/status"), &mut bytes),
                Ok(())
            );
            assert!(bytes.len() > 100);
        }
    }
}
