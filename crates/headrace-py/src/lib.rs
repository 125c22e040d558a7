//! The Python module `headrace._native`: this file registers the names; each concept has its own file.
#![deny(unsafe_code)]

mod buffer;
mod colour;
mod crc;
mod cuda_plan;
mod decode;
mod detach;
mod encode;
mod engine;
mod header;
mod index;
mod index_store;
mod items;
mod listing;
mod operations;
mod order;
mod pack;
mod passes;
mod program;
mod reference;
mod restart;
mod ring;
mod sound;
mod status;
mod store;
mod stream;
mod table;
mod values;
mod warp;

use pyo3::prelude::*;

/// The native core of headrace. Internal: use the names of the package `headrace`.
#[pymodule(gil_used = false)]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::colour::{
        give_blur_weights, hold_blur_weights, pillow_blur, release_blur_weights,
        serve_blur_weights, torch_blur_sums, wanted_blur_weights,
    };
    #[pymodule_export]
    use super::crc::crc32c;
    #[pymodule_export]
    use super::cuda_plan::CudaPlan;
    #[pymodule_export]
    use super::decode::{decode_into, follow_pillow};
    #[pymodule_export]
    use super::detach::provoke_panic;
    #[pymodule_export]
    use super::encode::{encode_jpeg, requantise_jpeg};
    #[pymodule_export]
    use super::engine::{Engine, Job};
    #[pymodule_export]
    use super::header::{image_size, jpeg_facts, quiet_orientation};
    #[pymodule_export]
    use super::index::Index;
    #[pymodule_export]
    use super::index_store::IndexStore;
    #[pymodule_export]
    use super::items::fill_items;
    #[pymodule_export]
    use super::listing::{
        change_number, file_facts, keys_of_names, list_images, order_numbers, text_hashes,
    };
    #[pymodule_export]
    use super::operations::operation_schema;
    #[pymodule_export]
    use super::order::{hashed, permute};
    #[pymodule_export]
    use super::pack::{pack_records, PackRecipe};
    #[pymodule_export]
    use super::program::Program;
    #[pymodule_export]
    use super::reference::reference_decode;
    #[pymodule_export]
    use super::restart::restart_markers;
    #[pymodule_export]
    use super::ring::Ring;
    #[pymodule_export]
    use super::sound::{decode_sound_jpeg, jpeg_shape, sound_jpeg};
    #[pymodule_export]
    use super::status::status_names;
    #[pymodule_export]
    use super::store::Store;
    #[pymodule_export]
    use super::stream::{DrawPlan, Stream};
    #[pymodule_export]
    use super::table::Table;
    #[pymodule_export]
    use super::warp::pillow_affine;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.delattr("__all__") // PyO3 lists all names, which an internal module does not need
    }
}
