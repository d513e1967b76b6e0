//! Life of a server: the workers beside it, and the steps of its shutdown. `serve` of
//! `lockgate-axum` and of `lockgate-actix-web` is based on it.
//!
//! ```text
//! shutdown signal -> drain: no new connections and jobs; open requests and runs may end
//!   drain timeout -> cut off: open requests get 503, running jobs return to their queues
//!            +1 s -> close: what is left of the connections
//!                 -> the last locks are released
//! ```

mod background_worker;
mod live_server;
mod server_lifecycle;
mod stop_signals;
mod termination_signal;
mod thread_app;

#[cfg(test)]
mod tests;

pub use self::{
    background_worker::BackgroundWorker,
    server_lifecycle::ServerLifecycle,
    stop_signals::{StopPhase, StopSignals},
    thread_app::build_thread_app,
};
