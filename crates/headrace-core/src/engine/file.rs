//! Read a whole image file in as few system calls as possible, and never wait for a file that is none.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Result, Status};
use crate::regular_file;

/// Read the regular file at `path` into `bytes`, replacing its contents: one open, one look at its size, one read, one close.
///
/// Errors: [`Status::Io`] if there is no such file, if it cannot be read, or if it is a pipe, device, socket or folder.
pub fn read_file(path: &Path, bytes: &mut Vec<u8>) -> Result<()> {
    read(path, bytes).map_err(|_| Status::Io)
}

fn read(path: &Path, bytes: &mut Vec<u8>) -> io::Result<()> {
    let (mut file, facts) = regular_file::open(path)?;
    let size = usize::try_from(facts.len()).map_err(io::Error::other)?;
    if size == 0 {
        // Some file systems state no size.
        bytes.clear();
        file.read_to_end(bytes)?;
        return Ok(());
    }
    make_room(bytes, size)?;
    let read = read_up_to(&file, bytes)?;
    bytes.truncate(read); // a file that shrank meanwhile
    Ok(())
}

/// Give `bytes` this length; what is new is zero.
pub fn make_room(bytes: &mut Vec<u8>, size: usize) -> io::Result<()> {
    if bytes.len() < size {
        bytes
            .try_reserve(size - bytes.len())
            .map_err(io::Error::other)?;
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
