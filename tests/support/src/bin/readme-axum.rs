//! The README's program with axum; see `build.rs`.

include!(concat!(env!("OUT_DIR"), "/readme_axum.rs"));
