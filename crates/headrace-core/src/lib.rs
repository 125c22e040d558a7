//! The native core of headrace: decode, resample, augment and pack images for training. It uses no Python and is tested by `cargo
//! test`.
//!
//! A module uses only modules before it in this order, which `tests/layout.rs` checks: error limits cpu crc rng twister geometry
//! order store regular_file record_keys image_folder, jpeg, exif formats quiet decode, resample colour warp, program, render mask
//! pack engine cuda_plan.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod colour;
pub mod cpu;
pub mod crc;
pub mod cuda_plan;
pub mod decode;
pub mod engine;
pub mod error;
pub mod exif;
pub mod formats;
pub mod geometry;
pub mod image_folder;
pub mod jpeg;
pub mod limits;
pub mod mask;
pub mod order;
pub mod pack;
pub mod program;
pub mod quiet;
pub mod record_keys;
pub mod regular_file;
pub mod render;
pub mod resample;
pub mod rng;
pub mod store;
pub mod twister;
pub mod warp;
