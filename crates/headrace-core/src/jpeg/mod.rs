//! JPEG: our own region decoder for baseline files, the lossless restart-marker writer, and libjpeg-turbo (the reference for
//! both, and the fallback for all other files).

pub mod bits;
pub mod entropy;
pub mod header;
pub mod huffman;
pub mod idct;
pub mod index;
pub mod profile;
pub mod region;
pub mod restart;
pub mod structure;
pub mod turbo;
pub mod upsample;
