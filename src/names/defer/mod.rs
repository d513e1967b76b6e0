//! The names of what defers requests, runs them, and tells of them.

mod layer;
mod routes;
mod worker;

/// `DeferLayer`, `DeferWorker` and `DeferredRoutes`, for `__define_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __defer_names {
    ($native:ty) => {
        ::lockgate::__defer_layer_names!($native);
        ::lockgate::__defer_worker_names!();
        ::lockgate::__defer_routes_names!($native);
    };
}
