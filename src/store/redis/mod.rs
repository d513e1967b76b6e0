//! Redis or Valkey as the store: what a step of an engine goes through on its way to the server.
//!
//! [`steps`] turns a typed step into one script call; [`call`] sends it, within the deadline, past the
//! breaker, again where that is safe; [`connect`] keeps the connections; [`listen`] has a connection of
//! its own for messages.

mod breaker;
mod builder;
mod call;
mod connect;
mod listen;
mod read;
mod script;
mod steps;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc, time::Duration};

use self::{breaker::Breaker, connect::Lanes};
use super::keys::Keys;

pub use self::builder::StoreBuilder;

/// One Redis server, or what looks like one.
pub(super) struct Redis {
    client: redis::Client,
    lanes: Arc<Lanes>,
    breaker: Arc<Breaker>,
    keys: Keys,
    deadline: Duration,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither address nor user: this ends in other people's logs.
        f.debug_struct("Redis").field("keys", &self.keys).finish_non_exhaustive()
    }
}
