//! `RedisConnection`: a connection that lockgate opened, or one checked out of the application's
//! pool.

use redis::{
    Cmd, Pipeline, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};

/// Multiplexed connection of any target. Clones share it, and their concurrent calls are pipelined.
#[derive(Clone)]
pub(in super::super) enum RedisConnection {
    Dedicated(MultiplexedConnection),
    #[cfg(feature = "bb8-redis")]
    Pooled(super::pool_target::CheckedOutConnection),
}

impl RedisConnection {
    /// Sends one command. Like [`ConnectionLike::req_packed_command`], but without a boxed future,
    /// because every request passes here.
    pub(in super::super) async fn send_packed_command(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Dedicated(connection) => connection.send_packed_command(cmd).await,
            #[cfg(feature = "bb8-redis")]
            Self::Pooled(checked_out) => checked_out.connection.send_packed_command(cmd).await,
        }
    }
}

impl ConnectionLike for RedisConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Dedicated(connection) => connection.req_packed_command(cmd),
            #[cfg(feature = "bb8-redis")]
            Self::Pooled(checked_out) => checked_out.connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Dedicated(connection) => connection.req_packed_commands(pipeline, offset, count),
            #[cfg(feature = "bb8-redis")]
            Self::Pooled(checked_out) => {
                checked_out.connection.req_packed_commands(pipeline, offset, count)
            }
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Dedicated(connection) => connection.get_db(),
            #[cfg(feature = "bb8-redis")]
            Self::Pooled(checked_out) => checked_out.connection.get_db(),
        }
    }
}
