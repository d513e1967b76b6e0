//! The README's program with actix-web; see `build.rs`.

include!(concat!(env!("OUT_DIR"), "/readme_actix_web.rs"));
