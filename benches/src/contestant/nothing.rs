//! No locks: what the others are seen beside.

use std::time::Duration;

use redis::aio::MultiplexedConnection;

use super::{Contestant, raw};
use crate::outcome::Outcome;

/// A round trip and nothing else: absolute times are worth what they are beside this.
pub(crate) struct Ping(MultiplexedConnection);

impl Contestant for Ping {
    type Lock = ();
    type Guard = ();

    async fn connect(port: u16, _: Duration) -> Outcome<Self> {
        Ok(Self(raw::connect(port).await?))
    }

    fn lock(&self, _: &str) {}

    async fn acquire(&self, (): &()) -> Outcome<()> {
        let mut connection = self.0.clone();
        Ok(redis::cmd("PING").query_async(&mut connection).await?)
    }

    async fn release(&self, (): ()) -> Outcome<()> {
        Ok(())
    }
}

/// Nothing at all, so that one task does its work without a pause: the ideal of a lock around work.
pub(crate) struct Nothing;

impl Contestant for Nothing {
    type Lock = ();
    type Guard = ();

    async fn connect(_: u16, _: Duration) -> Outcome<Self> {
        Ok(Self)
    }

    fn lock(&self, _: &str) {}

    async fn acquire(&self, (): &()) -> Outcome<()> {
        // The task's runtime must be able to do something else, as under any lock.
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn release(&self, (): ()) -> Outcome<()> {
        Ok(())
    }
}
