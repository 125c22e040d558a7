//! The images below a class folder, with the facts of their files: the quick path of listing an image folder.
//!
//! It declines whatever needs a decision or a message (names that are not UTF-8, links to folders, files that cannot be read); the
//! caller lists such a folder one file at a time.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
            if kind.is_dir() {
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
        let place = folder.join(parent.strip_prefix(class)?.trim_start_matches('/'));
        for name in names {
            if ends_in(name, endings.images) {
                let facts = fs::metadata(place.join(name)).ok()?;
                found.add(parent, name, &facts)?;
            } else if ends_in(name, endings.ignored) {
                found.ignored.push(format!("{parent}/{name}"));
            } else {
                found.others += 1;
            }
        }
    }
    Some(found)
}

impl Images {
    fn add(&mut self, parent: &str, name: &str, facts: &fs::Metadata) -> Option<()> {
        if !facts.is_file() {
            return None;
        }
        let begin = self.names.len();
        self.names.extend_from_slice(parent.as_bytes());
        self.names.push(b'/');
        self.names.extend_from_slice(name.as_bytes());
        self.lengths
            .push(i64::try_from(self.names.len() - begin).ok()?);
        self.sizes.push(i64::try_from(facts.len()).ok()?);
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.wrapping_mul(1_000_000_000).wrapping_add(rest);
        self.changed.push(change_number(
            nanoseconds(facts.mtime(), facts.mtime_nsec()),
            nanoseconds(facts.ctime(), facts.ctime_nsec()),
        ));
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
}
