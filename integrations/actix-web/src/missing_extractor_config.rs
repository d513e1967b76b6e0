//! Log record of a run whose extractor lacks a configuration that the server's `App` has.
//!
//! Without its configuration an extractor has the defaults of actix-web: the direct request
//! succeeds, and the run of the deferred one is refused with 400, 413 or 415. A client can cause
//! such a response too, so it alone proves nothing. Two more facts do: a request that was deferred
//! in this process had the configuration, and the run has none.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use actix_web::{
    Error, HttpRequest, ResponseError,
    dev::ServiceResponse,
    error::{JsonPayloadError, PayloadError, QueryPayloadError, UrlencodedError},
    web::{Data, FormConfig, JsonConfig, PayloadConfig, QueryConfig},
};
use lockgate::driver::ReplayMarker;

/// Configuration of an extractor. Of `PathConfig` the error is not known: without it the response
/// is 404, as that of the handler.
struct ExtractorConfig {
    name: &'static str,
    is_present: fn(&HttpRequest) -> bool,
    is_error_of: fn(&Error) -> bool,
    /// A request that was deferred in this process had it.
    was_deferred_with: AtomicBool,
}

static CONFIGS: [ExtractorConfig; 4] = [
    ExtractorConfig::new::<JsonConfig, JsonPayloadError>("JsonConfig"),
    ExtractorConfig::new::<FormConfig, UrlencodedError>("FormConfig"),
    ExtractorConfig::new::<QueryConfig, QueryPayloadError>("QueryConfig"),
    ExtractorConfig::new::<PayloadConfig, PayloadError>("PayloadConfig"),
];

impl ExtractorConfig {
    const fn new<C: 'static, E: ResponseError + 'static>(name: &'static str) -> Self {
        Self {
            name,
            is_present: |request| {
                request.app_data::<C>().is_some() || request.app_data::<Data<C>>().is_some()
            },
            is_error_of: |error| error.as_error::<E>().is_some(),
            was_deferred_with: AtomicBool::new(false),
        }
    }
}

/// Records the configurations of a request that is about to be stored.
pub(crate) fn record_extractor_configs(request: &HttpRequest) {
    for config in &CONFIGS {
        if !config.was_deferred_with.load(Ordering::Relaxed) && (config.is_present)(request) {
            config.was_deferred_with.store(true, Ordering::Relaxed);
        }
    }
}

/// Logs cause and fix if an extractor has refused a run without the configuration of the server.
/// The thread of a worker's routes logs it once for each configuration and route.
pub(crate) fn log_missing_config<B>(response: &ServiceResponse<B>, marker: &ReplayMarker) {
    thread_local!(static LOGGED: RefCell<BTreeSet<(&'static str, String)>> = RefCell::default());

    let Some(error) = response.response().error() else { return };
    let (request, status) = (response.request(), response.status());
    let is_missing = |config: &&ExtractorConfig| {
        config.was_deferred_with.load(Ordering::Relaxed)
            && (config.is_error_of)(error)
            && !(config.is_present)(request)
    };
    let missing = CONFIGS.iter().find(is_missing).filter(|_| status.is_client_error());
    let Some(ExtractorConfig { name, .. }) = missing else { return };
    let route = request.match_pattern();
    let entry = (*name, route.clone().unwrap_or_default());
    if !LOGGED.with_borrow_mut(|logged| logged.insert(entry)) {
        return;
    }
    tracing::warn!(
        job = %marker.job().id.log_prefix(),
        method = request.method().as_str(),
        route = route.as_deref(),
        status = status.as_u16(),
        config = name,
        "run refused by an extractor without its configuration: an App that has deferred requests \
         has this one, and the routes of the worker do not; register it by config.app_data(..) in \
         the function that DeferWorker::new gets, or give the worker the whole App by \
         DeferWorker::from_app. Logged once for each route"
    );
}
