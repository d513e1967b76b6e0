//! The processes of figures over HTTP: the servers, and the load on them.

pub(crate) mod limited;
pub(crate) mod load;
mod pings;
pub(crate) mod server;
