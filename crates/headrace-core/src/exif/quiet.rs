//! Metadata that Pillow reads without a warning and without an error.
//!
//! What is accepted here is less than that: fields as programs and cameras write them. Pillow's versions differ in the rest.

use super::directory::{kind, Directory, Field};
use super::tags::{self, expected, Group};
use super::{orientation_in_tiff, orientation_in_xmp, without_prefix, Blocks, ORIENTATION_TAG};

const RESOLUTION_UNIT_TAG: u32 = 0x0128;
const RESOLUTION_TAG: u32 = 0x011A;
const STRIP_OFFSETS_TAG: u32 = 273;
const XMP_TAG: u32 = 700;

/// Return whether Pillow reads the EXIF block and the XMP packet of a file, other than TIFF, quietly. `upright`: it turns the image by
/// them. It then writes the EXIF block again, without the orientation.
pub(crate) fn block_is_quiet(blocks: &Blocks<'_>, upright: bool) -> bool {
    if blocks.found > 1 {
        return false;
    }
    let stated = match blocks.exif.as_deref().map(without_prefix) {
        None | Some([]) => None,
        Some(tiff) => {
            let Some(directory) = Directory::first(tiff).filter(|_| is_usual(tiff)) else {
                return false;
            };
            let stated = orientation_in_tiff(tiff);
            let turns = upright && stated.is_some_and(|number| number > 1);
            let quiet = directory.walk_all(|field| {
                is_plain(field, Group::Image) && (!turns || is_rewritten(field, Group::Image))
            });
            let decisive = [
                ORIENTATION_TAG,
                RESOLUTION_TAG,
                RESOLUTION_UNIT_TAG,
                tags::EXIF_TAG,
                tags::GPS_TAG,
            ];
            if !quiet
                || decisive
                    .into_iter()
                    .any(|tag| directory.contradicts_itself(tag))
                || (turns && !inner_are_quiet(&directory, true))
            {
                return false;
            }
            stated
        }
    };
    // Versions of Pillow differ in which XMP packets count.
    stated.is_some() || !upright || !blocks.xmp.as_deref().is_some_and(turns_by_xmp)
}

/// Return whether Pillow reads the directories of a TIFF file quietly.
pub(crate) fn file_is_quiet(tiff: &[u8]) -> bool {
    let Some(directory) = Directory::first(tiff).filter(|_| is_usual(tiff)) else {
        return false;
    };
    let turns_by_packet = super::xmp_of_tiff(tiff).is_some_and(turns_by_xmp);
    directory.ascends()
        && directory.walk_all(|field| {
            let known_place = field.tag != tags::INTEROPERABILITY_TAG;
            let readable_packet = field.tag != XMP_TAG || field.is_bytes();
            known_place && readable_packet && is_counted(field) && has_usual_counts(field)
        })
        && inner_are_quiet(&directory, false)
        && (orientation_in_tiff(tiff).is_some() || !turns_by_packet)
}

/// Return whether Pillow knows the field of the first directory with as many values.
pub(crate) fn has_usual_counts(field: &Field<'_>) -> bool {
    has_expected_count(field, Group::Image)
}

fn turns_by_xmp(packet: &[u8]) -> bool {
    orientation_in_xmp(packet).is_some_and(|number| number > 1)
}

/// Return whether a structure begins with 42 in its own byte order.
fn is_usual(tiff: &[u8]) -> bool {
    tiff.starts_with(b"MM\0*") || tiff.starts_with(b"II*\0")
}

/// Return whether Pillow reads the directories inside the first one quietly, and can write them again with `rewritten`.
fn inner_are_quiet(directory: &Directory<'_>, rewritten: bool) -> bool {
    let mut places = Vec::new();
    directory.walk(|field| {
        let group = match field.tag {
            tags::EXIF_TAG => Group::Exif,
            tags::GPS_TAG => Group::Gps,
            _ => return,
        };
        places.push((place_of_directory(field), group));
    });
    places.into_iter().all(|(place, group)| {
        let Some(inner) = place.and_then(|place| directory.at(place)) else {
            return false;
        };
        let mut innermost = None;
        let quiet = inner.walk_all(|field| {
            if field.tag == tags::INTEROPERABILITY_TAG && group == Group::Exif {
                innermost = Some(place_of_directory(field));
            }
            has_expected_count(field, group) && (!rewritten || is_rewritten(field, group))
        });
        let deeper = match innermost.filter(|_| rewritten) {
            None => true,
            Some(place) => place
                .and_then(|place| directory.at(place))
                .is_some_and(|inner| {
                    let group = Group::Interoperability;
                    inner.walk_all(|field| {
                        has_expected_count(field, group) && is_rewritten(field, group)
                    })
                }),
        };
        quiet && deeper
    })
}

/// Return the offset that a field with one value of type LONG is.
fn place_of_directory(field: &Field<'_>) -> Option<usize> {
    let is_place = field.kind == kind::LONG && field.count == 1;
    field
        .number()
        .filter(|_| is_place)
        .map(|place| place as usize)
}

/// Return whether Pillow reads a field of the first directory without an error when it opens a JPEG: it looks for the resolution.
fn is_plain(field: &Field<'_>, group: Group) -> bool {
    match field.tag {
        RESOLUTION_TAG | RESOLUTION_UNIT_TAG => field.count == 1 && !field.is_bytes(),
        ORIENTATION_TAG => has_expected_count(field, group),
        _ => true,
    }
}

/// Return whether a field has one value where Pillow expects one. Bytes and characters are one.
fn has_expected_count(field: &Field<'_>, group: Group) -> bool {
    field.count == 1
        || field.is_bytes()
        || !expected(group, field.tag).is_some_and(|expected| expected.single)
}

/// Return whether a field holds whole numbers where Pillow counts with them.
fn is_counted(field: &Field<'_>) -> bool {
    let is_whole = |kind| matches!(kind, kind::SHORT | kind::LONG);
    let counted = expected(Group::Image, field.tag).is_some_and(|expected| is_whole(expected.kind));
    !counted || is_whole(field.kind) || field.tag == ORIENTATION_TAG
}

/// Return whether Pillow can write a field again.
fn is_rewritten(field: &Field<'_>, group: Group) -> bool {
    if !has_expected_count(field, group) || field.tag == STRIP_OFFSETS_TAG {
        return false;
    }
    match expected(group, field.tag) {
        Some(expected) => {
            field.kind == expected.kind
                || (field.kind == kind::SHORT && expected.kind == kind::LONG)
                || field.tag == ORIENTATION_TAG // which is taken out before
        }
        None => !matches!(field.kind, kind::IFD | kind::LONG8),
    }
}
