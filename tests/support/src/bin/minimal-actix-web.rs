//! `examples/minimal-actix-web` with the settings of the test; see `build.rs`.

include!(concat!(env!("OUT_DIR"), "/minimal_actix_web.rs"));
