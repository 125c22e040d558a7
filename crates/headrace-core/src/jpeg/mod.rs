//! JPEG: libjpeg-turbo (reference and fallback) and our own region decoder.

pub mod turbo;
