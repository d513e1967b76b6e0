//! The processes of figures over HTTP: the servers, and the load on them.

pub(crate) mod limited;
pub(crate) mod load;
pub(crate) mod server;
