//! The images below a class folder, with the facts of their files: the quick path of listing an image folder. The facts of files that
//! a list names.
//!
//! The listing declines whatever needs a decision or a message (names that are not UTF-8, links to folders, files that cannot be read); the
//! caller lists such a folder one file at a time.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::path::Arg;

use crate::record_keys::Texts;

/// Images in torchvision's order: by folder, then by name. The columns have one entry an image.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Images {
    /// The names without anything between them. Each begins with its class: `CLASS/image.jpg`.
    pub names: Vec<u8>,
    /// Bytes of each name.
    pub lengths: Vec<i64>,
    /// Bytes of each file.
    pub sizes: Vec<i64>,
    /// A number that changes with each file ([`change_number`]).
    pub changed: Vec<i64>,
    /// Image files that torchvision does not read.
    pub ignored: Vec<String>,
    /// Number of files with other endings.
    pub others: usize,
}

/// The endings of names, in lower case: of images, and of images that are ignored.
#[derive(Debug, Clone, Copy)]
pub struct Endings<'a> {
    /// Endings of images.
    pub images: &'a [String],
    /// Endings of image files that torchvision does not read.
    pub ignored: &'a [String],
}

/// Return a number that changes when a file's time of modification or of status changes, both in nanoseconds.
pub fn change_number(modified_ns: i64, status_ns: i64) -> i64 {
    // 2^64 divided by the golden ratio, odd: each factor gives another product.
    modified_ns.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64) ^ status_ns
}

/// List the images below `folder`; their names begin with `class`. Return `None` where the caller must look at each file itself.
pub fn list_images(folder: &Path, class: &str, endings: Endings<'_>) -> Option<Images> {
    let mut folders = vec![class.to_owned()];
    let mut files: Vec<(String, Vec<String>)> = Vec::new();
    while let Some(parent) = folders.pop() {
        let mut names = Vec::new();
        let place = parent.strip_prefix(class)?.trim_start_matches('/');
        for entry in fs::read_dir(folder.join(place)).ok()? {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let kind = entry.file_type().ok()?;
            if kind.is_dir() && (name.starts_with('.') || name == "__MACOSX") {
                return None; // the caller lists which folders it ignores
            } else if kind.is_dir() {
                folders.push(format!("{parent}/{name}"));
            } else if kind.is_symlink() && fs::metadata(entry.path()).ok()?.is_dir() {
                return None;
            } else {
                names.push(name);
            }
        }
        names.sort_unstable();
        files.push((parent, names));
    }
    files.sort_unstable();
    let mut found = Images::default();
    for (parent, names) in &files {
        let place = opened(&folder.join(parent.strip_prefix(class)?.trim_start_matches('/')))?;
        for name in names {
            if ends_in(name, endings.images) {
                found.add(parent, name, &facts_of(&place, name.as_str())?)?;
            } else if ends_in(name, endings.ignored) {
                found.ignored.push(format!("{parent}/{name}"));
            } else {
                found.others += 1;
            }
        }
    }
    Some(found)
}

/// Return the size of each file in `folder` that a list names, and a number that changes with it: 0 and 0 for a missing file, -1 and 0
/// for what is no regular file. `is_copy`: the files are copies, whose change of status says nothing. A name may be absolute.
pub fn file_facts(folder: &Path, names: Texts<'_>, is_copy: bool) -> (Vec<i64>, Vec<i64>) {
    let place = opened(folder);
    let facts = |name: &[u8]| match place.as_ref().and_then(|place| facts_of(place, name)) {
        None => (0, 0),
        Some(facts) if !is_regular(&facts) => (-1, 0),
        Some(facts) => (facts.st_size, change_of(&facts, is_copy)),
    };
    names.iter().map(facts).unzip()
}

/// Open a folder, so that the files in it are looked up without the path before their names.
fn opened(folder: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(folder, flags, Mode::empty()).ok()
}

fn facts_of(folder: impl AsFd, name: impl Arg) -> Option<Stat> {
    rustix::fs::statat(folder, name, AtFlags::empty()).ok()
}

fn is_regular(facts: &Stat) -> bool {
    FileType::from_raw_mode(facts.st_mode) == FileType::RegularFile
}

/// Return the [`change_number`] of a file; with `is_copy`, of its time of modification alone.
fn change_of(facts: &Stat, is_copy: bool) -> i64 {
    let nanoseconds = |seconds: i64, rest| seconds.wrapping_mul(1_000_000_000).wrapping_add(rest);
    let status = nanoseconds(facts.st_ctime, facts.st_ctime_nsec as i64);
    change_number(
        nanoseconds(facts.st_mtime, facts.st_mtime_nsec as i64),
        if is_copy { 0 } else { status },
    )
}

impl Images {
    fn add(&mut self, parent: &str, name: &str, facts: &Stat) -> Option<()> {
        if !is_regular(facts) {
            return None;
        }
        let begin = self.names.len();
        self.names.extend_from_slice(parent.as_bytes());
        self.names.push(b'/');
        self.names.extend_from_slice(name.as_bytes());
        self.lengths
            .push(i64::try_from(self.names.len() - begin).ok()?);
        self.sizes.push(facts.st_size);
        self.changed.push(change_of(facts, false));
        Some(())
    }
}

/// Return whether a name has one of these endings, in any case. No letter outside ASCII has one of theirs as its lower case.
fn ends_in(name: &str, endings: &[String]) -> bool {
    endings.iter().any(|ending| {
        let begin = name.len().checked_sub(ending.len());
        begin.is_some_and(|begin| name.as_bytes()[begin..].eq_ignore_ascii_case(ending.as_bytes()))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::regular_file::tests::folder;

    fn listed(root: &Path) -> Option<Images> {
        let (images, ignored) = ([".jpg".to_owned()], [".gif".to_owned()]);
        let endings = Endings {
            images: &images,
            ignored: &ignored,
        };
        list_images(root, "class", endings)
    }

    #[test]
    fn images_come_by_folder_and_name() {
        let root = folder("image-folder");
        for name in [
            "b.JPG",
            "a.jpg",
            "z/c.jpg",
            "z-/d.jpg",
            "move.gif",
            "notes.txt",
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let found = listed(&root).unwrap();
        let names = "class/a.jpg class/b.JPG class/z/c.jpg class/z-/d.jpg"; // the folder "z" comes before "z-"
        assert_eq!(found.names, names.replace(' ', "").into_bytes());
        assert_eq!(found.sizes, [5, 5, 7, 8]);
        assert_eq!(found.ignored, ["class/move.gif"]);
        assert_eq!(found.others, 1);
        let total: i64 = found.lengths.iter().sum();
        assert_eq!(total as usize, found.names.len());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_facts_of_files_of_a_list_are_those_of_the_listing() {
        let root = folder("image-folder-facts");
        fs::write(root.join("a.jpg"), "four").unwrap();
        let listing = listed(&root).unwrap();
        let whole = root.join("a.jpg");
        let names = [
            b"a.jpg".as_slice(),
            b"gone.jpg",
            b".",
            whole.to_str().unwrap().as_bytes(),
        ];
        let mut start = vec![0];
        for name in names {
            start.push(start.last().unwrap() + name.len() as i64);
        }
        let bytes = names.concat();
        let texts = Texts::new(&bytes, &start).unwrap();
        let (sizes, changed) = file_facts(&root, texts, false);
        assert_eq!(sizes, [4, 0, -1, 4]);
        let change = listing.changed[0];
        assert_eq!(changed, [change, 0, 0, change]);
        assert_ne!(file_facts(&root, texts, true).1[0], change);
        assert_eq!(file_facts(&root.join("gone"), texts, false).0, [0; 4]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_needs_a_message_is_declined() {
        let root = folder("image-folder-links");
        fs::write(root.join("a.jpg"), "a").unwrap();
        std::os::unix::fs::symlink(root.join("a.jpg"), root.join("b.jpg")).unwrap();
        assert_eq!(listed(&root).unwrap().sizes, [1, 1]);
        std::os::unix::fs::symlink(&root, root.join("again")).unwrap();
        assert_eq!(listed(&root), None);
        fs::remove_file(root.join("again")).unwrap();
        std::os::unix::fs::symlink(root.join("gone"), root.join("c.jpg")).unwrap();
        assert_eq!(listed(&root), None);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn folders_that_are_ignored_are_declined() {
        for name in [".git", "__MACOSX"] {
            let root = folder("image-folder-hidden");
            fs::write(root.join("a.jpg"), "a").unwrap();
            fs::create_dir(root.join(name)).unwrap();
            assert_eq!(listed(&root), None);
            fs::remove_dir_all(root).unwrap();
        }
    }
}
