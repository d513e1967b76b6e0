//! The application in actix-web.

use lockgate_axum::DeferWorker;

use super::{App, Running};

pub(super) async fn serve(_: &App) -> Running {
    todo!()
}

pub(super) fn worker(_: &App) -> DeferWorker {
    todo!()
}
