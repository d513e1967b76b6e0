//! Figure 5's processes: the servers, and the load on them.

pub(crate) mod load;
pub(crate) mod server;
