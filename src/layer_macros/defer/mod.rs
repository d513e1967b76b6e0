//! Macros that define `DeferLayer`, `DeferWorker` and `DeferredRoutes`.

mod carry_settings;
mod defer_layer;
mod defer_worker;
mod status_routes;

/// Defines `DeferLayer`, `DeferWorker` and `DeferredRoutes`, for `__define_layers`.
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
