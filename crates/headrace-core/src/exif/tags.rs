//! What Pillow expects of the fields that it knows (TiffTags.py, `TAGS_V2` and `TAGS_V2_GROUPS`).

/// A directory of a file: Pillow knows other tags in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// The first directory, and that of a multi-picture file.
    Image,
    /// What `EXIF_TAG` points to.
    Exif,
    /// What `GPS_TAG` points to.
    Gps,
    /// What `INTEROPERABILITY_TAG` points to.
    Interoperability,
}

pub(super) const EXIF_TAG: u32 = 34_665;
pub(super) const GPS_TAG: u32 = 34_853;
pub(super) const INTEROPERABILITY_TAG: u32 = 40_965;

/// What Pillow expects of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected {
    /// The type with which Pillow writes it.
    pub(super) kind: u32,
    /// Whether Pillow warns of more than one value.
    pub(super) single: bool,
}

/// Return what Pillow expects of a field; `None` for fields that it does not know.
pub(super) fn expected(group: Group, tag: u32) -> Option<Expected> {
    let rows: &[(u16, u8, u8)] = match group {
        Group::Image => &IMAGE,
        Group::Exif => &EXIF,
        Group::Gps => &GPS,
        Group::Interoperability => &INTEROPERABILITY,
    };
    let tag = u16::try_from(tag).ok()?;
    let found = rows.binary_search_by_key(&tag, |row| row.0).ok()?;
    let (_, kind, single) = rows[found];
    Some(Expected {
        kind: u32::from(kind),
        single: single == 1,
    })
}

// Tag, type, and 1 where one value is expected.

#[rustfmt::skip]
const IMAGE: [(u16, u8, u8); 114] = [
    (254, 4, 1), (255, 3, 1), (256, 4, 1), (257, 4, 1), (258, 3, 0), (259, 3, 1), (262, 3, 1),
    (263, 3, 1), (264, 3, 1), (265, 3, 1), (266, 3, 1), (269, 2, 1), (270, 2, 1), (271, 2, 1),
    (272, 2, 1), (273, 4, 0), (274, 3, 1), (277, 3, 1), (278, 4, 1), (279, 4, 0), (280, 3, 0),
    (281, 3, 0), (282, 5, 1), (283, 5, 1), (284, 3, 1), (285, 2, 1), (286, 5, 1), (287, 5, 1),
    (288, 4, 1), (289, 4, 1), (290, 3, 1), (291, 3, 0), (292, 4, 1), (293, 4, 1), (296, 3, 1),
    (297, 3, 0), (301, 3, 0), (305, 2, 1), (306, 2, 1), (315, 2, 1), (316, 2, 1), (317, 3, 1),
    (318, 5, 0), (319, 5, 0), (320, 3, 0), (321, 3, 0), (322, 4, 1), (323, 4, 1), (324, 4, 0),
    (325, 4, 0), (330, 4, 0), (332, 3, 1), (333, 2, 1), (334, 3, 1), (336, 3, 0), (337, 2, 1),
    (338, 3, 0), (339, 3, 0), (340, 12, 0), (341, 12, 0), (342, 3, 0), (347, 7, 1), (512, 3, 1),
    (513, 4, 1), (514, 4, 1), (515, 3, 1), (517, 3, 0), (518, 3, 0), (519, 4, 0), (520, 4, 0),
    (521, 4, 0), (529, 5, 0), (530, 3, 0), (531, 3, 1), (532, 5, 0), (700, 1, 0), (32995, 3, 1),
    (32996, 3, 0), (32997, 4, 1), (32998, 4, 1), (33432, 2, 1), (33723, 7, 1), (34377, 1, 0),
    (34665, 4, 1), (34675, 7, 1), (34853, 4, 1), (36864, 7, 1), (37724, 7, 1), (40960, 7, 1),
    (40965, 4, 1), (41730, 7, 1), (45056, 7, 1), (45057, 4, 1), (45058, 7, 1), (45059, 7, 0),
    (45060, 4, 1), (45313, 4, 1), (45569, 4, 1), (45570, 5, 1), (45571, 5, 1), (45572, 4, 1),
    (45573, 10, 1), (45574, 5, 1), (45575, 10, 1), (45576, 10, 1), (45577, 10, 1), (45578, 10, 1),
    (45579, 10, 1), (45580, 10, 1), (45581, 10, 1), (50741, 3, 1), (50780, 5, 1), (50838, 4, 0),
    (50839, 7, 1),
];

#[rustfmt::skip]
const EXIF: [(u16, u8, u8); 4] = [
    (36864, 7, 1), (40960, 7, 1), (40965, 4, 1), (41730, 7, 1),
];

#[rustfmt::skip]
const GPS: [(u16, u8, u8); 32] = [
    (0, 1, 0), (1, 2, 0), (2, 5, 0), (3, 2, 0), (4, 5, 0), (5, 1, 1), (6, 5, 1), (7, 5, 0),
    (8, 2, 0), (9, 2, 0), (10, 2, 0), (11, 5, 1), (12, 2, 0), (13, 5, 1), (14, 2, 0), (15, 5, 1),
    (16, 2, 0), (17, 5, 1), (18, 2, 0), (19, 2, 0), (20, 5, 0), (21, 2, 0), (22, 5, 0), (23, 2, 0),
    (24, 5, 1), (25, 2, 0), (26, 5, 1), (27, 7, 0), (28, 7, 0), (29, 2, 0), (30, 3, 1), (31, 5, 1),
];

#[rustfmt::skip]
const INTEROPERABILITY: [(u16, u8, u8); 2] = [
    (1, 2, 1), (2, 7, 1),
];
