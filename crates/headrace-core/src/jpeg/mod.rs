//! JPEG: our own region decoder for baseline files, writers that keep or requantise the coefficients, and libjpeg-turbo, which is
//! the reference of the decoder and decodes all other files.

pub mod binding;
pub mod bits;
pub(crate) mod entropy;
pub mod exif_segment;
pub mod facts;
pub mod header;
pub mod huffman;
pub(crate) mod idct;
pub mod index;
pub(crate) mod lanes;
pub mod marker;
mod plane;
pub mod profile;
pub mod quality;
pub mod region;
pub mod requantise;
pub mod restart;
pub mod sound;
pub mod structure;
pub mod turbo;
pub mod upsample;
mod writer;
