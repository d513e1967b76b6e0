//! `examples/minimal-axum` with the settings of the test; see `build.rs`.

include!(concat!(env!("OUT_DIR"), "/minimal_axum.rs"));
