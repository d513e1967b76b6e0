//! Processes of the figures over HTTP: servers and their load.

pub(crate) mod http_load;
pub(crate) mod limiter_server;
pub(crate) mod lock_server;
mod ping_middleware;
