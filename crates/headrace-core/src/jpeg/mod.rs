//! JPEG: our own region decoder for baseline files, and libjpeg-turbo (its reference, and the fallback for all others).

pub mod bits;
pub mod entropy;
pub mod extension;
pub mod header;
pub mod huffman;
pub mod idct;
pub mod profile;
pub mod region;
pub mod structure;
pub mod turbo;
pub mod upsample;
