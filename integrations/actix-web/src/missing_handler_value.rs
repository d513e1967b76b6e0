//! Log record of a run whose handler lacks a value that it has in the server.
//!
//! The routes of a worker are built apart from the server's `App`, so a value can be missing in the
//! runs alone: the direct request succeeds, and the client of the deferred one sees a dead job
//! without a cause.

use actix_web::dev::ServiceResponse;
use lockgate::driver::ReplayMarker;

/// Errors of actix-web's extractors (4.x) about a missing value, with the cause and the fix in a
/// worker. actix logs the type of the value itself, at the level `DEBUG`.
const MISSING_VALUES: [(&str, &str); 2] = [
    (
        "Requested application data is not configured correctly",
        "the handler takes a web::Data that the routes of the worker do not have; register it by \
         config.app_data(..) in the function that DeferWorker::new gets, not on the server's App, \
         or give the worker the whole App by DeferWorker::from_app",
    ),
    (
        "Missing expected request extension data",
        "the handler takes a web::ReqData that no middleware of the worker's routes inserts; carry \
         the user by .for_user::<U>() on the DeferLayer and on the worker (if both have it, the \
         request had no user: wrap the authentication outside of the DeferLayer), or wrap the \
         middleware around the routes in the function that DeferWorker::new gets",
    ),
];

/// Logs cause and fix if the response of a run is the error of an extractor whose value is missing.
/// Any other error of the handler is its own affair.
pub(crate) fn log_missing_value<B>(response: &ServiceResponse<B>, marker: &ReplayMarker) {
    let Some(error) = response.response().error() else { return };
    let error = error.to_string();
    let found = MISSING_VALUES.iter().find(|(text, _)| error.starts_with(*text));
    let Some((_, cause_and_fix)) = found else { return };
    let route = response.request().match_pattern();
    tracing::error!(
        job = %marker.job().id.log_prefix(),
        method = response.request().method().as_str(),
        route = route.as_deref(),
        status = response.status().as_u16(),
        "run failed: {cause_and_fix}"
    );
}

#[cfg(test)]
mod tests {
    use actix_web::{
        App, HttpRequest,
        test::{TestRequest, call_service, init_service},
        web,
    };

    use super::*;

    /// The texts are those of the actix-web that this crate is built with.
    #[actix_web::test]
    async fn errors_of_actix_extractors_are_recognized() {
        let app = App::new()
            .route("/data", web::get().to(async |_: web::Data<u32>| ""))
            .route("/extension", web::get().to(async |_: web::ReqData<u32>| ""))
            .route("/fine", web::get().to(async |_: HttpRequest| ""));
        let app = init_service(app).await;
        for (path, expected) in [("/data", Some(0)), ("/extension", Some(1)), ("/fine", None)] {
            let response = call_service(&app, TestRequest::get().uri(path).to_request()).await;
            let error = response.response().error().map(ToString::to_string).unwrap_or_default();
            let found = MISSING_VALUES.iter().position(|(text, _)| error.starts_with(*text));
            assert_eq!(found, expected, "{path}: {error}");
        }
    }
}
