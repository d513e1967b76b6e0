//! The commands, one file each.

pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod jobs;
pub(crate) mod limits;
pub(crate) mod locks;
pub(crate) mod queues;
pub(crate) mod top;
pub(crate) mod workers;
