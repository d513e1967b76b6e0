//! Routes whose locks end in ways of their own.

use actix_web::web::{ServiceConfig, resource};
use lockgate_actix_web::LockLayer;

use super::work;

pub(super) fn ends(config: &mut ServiceConfig) {
    let by_id = || LockLayer::by_path_param("id");
    let mut one = |path: &str, layer: LockLayer| {
        config.service(resource(path).to(work).wrap(layer));
    };
    one("/background/{id}", by_id().release_in_background());
}
