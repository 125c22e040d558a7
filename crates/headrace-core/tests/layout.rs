//! The modules of the crate have one order. Each uses only modules before it, so there is no circle of imports.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// The modules in import order: each uses only modules before it in this list.
const ORDER: [&str; 26] = [
    "error",
    "limits",
    "cpu",
    "crc",
    "rng",
    "twister",
    "geometry",
    "order",
    "store",
    "regular_file",
    "record_keys",
    "image_folder",
    "jpeg",
    "exif",
    "formats",
    "quiet",
    "decode",
    "resample",
    "colour",
    "warp",
    "program",
    "render",
    "mask",
    "pack",
    "engine",
    "cuda_plan",
];

/// Return every Rust file below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Return the module of the crate that a file belongs to, by its first folder or its own name.
fn module_of(file: &Path, source: &Path) -> String {
    let inside = file.strip_prefix(source).unwrap();
    let first = inside.components().next().unwrap().as_os_str();
    Path::new(first)
        .file_stem()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned()
}

/// Return the names that follow `crate::` in the code of a file, without its unit tests, which may use any module.
fn used_modules(text: &str) -> Vec<&str> {
    let code = text.split("\n#[cfg(test)]\n").next().unwrap();
    code.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &rest[..end.unwrap_or(rest.len())]
        })
        .collect()
}

#[test]
fn each_module_uses_only_modules_before_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let place = |module: &str| ORDER.iter().position(|&name| name == module);
    let mut wrong = Vec::new();
    for file in files(&source) {
        let module = module_of(&file, &source);
        if module == "lib" {
            continue;
        }
        let own = place(&module).unwrap_or_else(|| panic!("{module} has no place in the order"));
        for used in used_modules(&fs::read_to_string(&file).unwrap()) {
            match place(used) {
                Some(other) if other > own => {
                    wrong.push(format!("{} uses {used}", file.display()));
                }
                Some(_) => {}
                None => wrong.push(format!("{} uses crate::{used}", file.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_order_lists_every_module_once() {
    let lib = include_str!("../src/lib.rs");
    let mut declared: Vec<&str> = lib
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    let mut listed = ORDER.to_vec();
    declared.sort_unstable();
    listed.sort_unstable();
    assert_eq!(declared, listed);
}

#[test]
fn no_module_has_more_than_600_lines() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let binding = source.join("../../headrace-py/src");
    for file in files(&source).into_iter().chain(files(&binding)) {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= 600, "{} has {lines} lines", file.display());
    }
}
