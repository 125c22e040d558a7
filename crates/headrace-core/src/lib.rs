//! Decode, resample and pack images for training. Knows no Python; everything here is testable with `cargo test`.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod colour;
pub mod cpu;
pub mod crc;
pub mod decode;
pub mod engine;
pub mod error;
pub mod exif;
pub mod formats;
pub mod geometry;
pub mod jpeg;
pub mod mask;
pub mod order;
pub mod pack;
pub mod program;
pub mod render;
pub mod resample;
pub mod rng;
pub mod store;
pub mod warp;
