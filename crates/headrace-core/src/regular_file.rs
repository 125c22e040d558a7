//! Opening of files that a dataset or a cache names: only regular files, and never with a wait.
//!
//! Opening a named pipe waits for its other end, and reading a device may never end. Both can take the place of a file after the
//! dataset was listed. In a folder such as /tmp, other users can also put a link or a file of theirs in the place of a cache's
//! file before it is made.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Open without a wait for the other end of a pipe, and without taking a terminal. Miri knows none of the flags.
const AT_ONCE: OFlags = if cfg!(miri) {
    OFlags::empty()
} else {
    OFlags::NONBLOCK.union(OFlags::NOCTTY)
};

/// Open a regular file for reading and return it with its facts. Links are followed.
///
/// Errors: [`io::ErrorKind::InvalidInput`] for a named pipe, a device or a folder, else those of the system.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    checked(OpenOptions::new().read(true), path, AT_ONCE)
}

/// Open a file of a cache with `options`: a regular file of this user or of root, and no link.
///
/// Errors: as [`open`]; [`io::ErrorKind::PermissionDenied`] for a file of another user.
pub fn open_own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let (file, facts) = checked(options, path, AT_ONCE.union(OFlags::NOFOLLOW))?;
    let user = rustix::process::geteuid().as_raw();
    if facts.uid() != user && facts.uid() != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(file)
}

fn checked(options: &mut OpenOptions, path: &Path, flags: OFlags) -> io::Result<(File, Metadata)> {
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    let facts = file.metadata()?;
    if facts.is_file() {
        Ok((file, facts))
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Return an empty folder of this test.
    pub(crate) fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("headrace-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Make a named pipe that nobody writes to.
    pub(crate) fn pipe(path: &Path) {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, path, mode).unwrap();
    }

    /// Return what `work` returns; fail the test if `work` waits.
    pub(crate) fn at_once<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(work()).unwrap());
        let answer = receiver.recv_timeout(Duration::from_secs(20));
        answer.expect("it waits for a file that is none")
    }

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let folder = folder("regular-file");
        let (file, link, fifo) = (
            folder.join("file"),
            folder.join("link"),
            folder.join("pipe"),
        );
        std::fs::write(&file, b"abc").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        pipe(&fifo);
        assert_eq!(open(&file).unwrap().1.len(), 3);
        assert_eq!(open(&link).unwrap().1.len(), 3);
        let kind = |path: &Path| {
            let path = path.to_owned();
            at_once(move || open(&path).map(drop).unwrap_err().kind())
        };
        for other in [&folder, &fifo, Path::new("/dev/zero")] {
            assert_eq!(kind(other), io::ErrorKind::InvalidInput);
        }
        assert_eq!(kind(&folder.join("missing")), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_cache_opens_no_link_no_pipe_and_no_file_of_another_user() {
        let folder = folder("own-file");
        let (file, link, fifo) = (
            folder.join("file"),
            folder.join("link"),
            folder.join("pipe"),
        );
        let append = |path: &Path| {
            let path = path.to_owned();
            at_once(move || {
                let mut options = OpenOptions::new();
                options.read(true).append(true).create(true);
                open_own(&mut options, &path)
                    .map(drop)
                    .map_err(|error| error.kind())
            })
        };
        assert_eq!(append(&file), Ok(()));
        assert_eq!(append(&file), Ok(()));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(append(&link).is_err());
        std::os::unix::fs::symlink(folder.join("planted"), folder.join("dangling")).unwrap();
        assert!(append(&folder.join("dangling")).is_err());
        assert!(!folder.join("planted").exists());
        pipe(&fifo);
        assert!(append(&fifo).is_err());
        // Only root gives files away.
        if std::os::unix::fs::chown(&file, Some(54_321), None).is_ok() {
            assert_eq!(append(&file), Err(io::ErrorKind::PermissionDenied));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
