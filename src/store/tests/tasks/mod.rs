//! Queues of tasks that stand by themselves.

mod bytes;
mod desk;
mod ends;
#[cfg(feature = "redis")]
mod fsck;
mod idle;
mod letters;
mod limits;
#[cfg(feature = "redis")]
mod model;
mod next;
mod purge;
mod push;

use super::{on_every_store, rig::Rig};
