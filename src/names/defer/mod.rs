//! The names of what defers requests, runs them, and tells of them.

mod carry;
mod layer;
mod routes;
mod worker;

/// `DeferLayer`, `DeferWorker` and `DeferredRoutes`, for `__define_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __defer_names {
    ($native:ty, $found:ident, $put:ident) => {
        ::lockgate::__defer_layer_names!($native);
        ::lockgate::__defer_carry_names!($found);
        ::lockgate::__defer_worker_names!($put);
        ::lockgate::__defer_routes_names!($native);
    };
}
