//! Routes whose locks end in ways of their own.

use axum::{Router, routing::any};
use lockgate_axum::LockLayer;

use super::{Routes, work};

pub(super) fn ends() -> Routes {
    let by_id = || LockLayer::by_path_param("id");
    let one = |path, layer: LockLayer| Router::new().route(path, any(work)).layer(layer);
    one("/background/{id}", by_id().release_in_background())
}
