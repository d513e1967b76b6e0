//! The names of what defers requests, runs them, and tells of them.

mod carry_settings;
mod defer_layer;
mod defer_worker;
mod status_routes;

/// `DeferLayer`, `DeferWorker` and `DeferredRoutes`, for `__define_names`.
#[doc(hidden)]
#[macro_export]
macro_rules! __define_defer {
    ($native:ty, $found:ident, $put:ident) => {
        ::lockgate::__define_defer_layer!($native);
        ::lockgate::__define_defer_carry!($found);
        ::lockgate::__define_defer_worker!($put);
        ::lockgate::__define_deferred_routes!($native);
    };
}
