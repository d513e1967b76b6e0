//! Queries of all sentinels for the current master, and their parsed replies.

use std::sync::atomic::Ordering;

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use redis::{RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tokio::time::{Instant, timeout_at};

use super::{
    super::{ConnectError, store_url::HostPort},
    SentinelGroup, SentinelServer, SentinelTarget,
    sentinel_reports::{SentinelReport, SentinelReports},
};
use crate::durations::ceil_millis;

/// Replies to the query, and the connection to use again.
type SentinelReply = RedisResult<(Vec<Value>, MultiplexedConnection)>;

fn is_io_failure(reply: &SentinelReply) -> bool {
    reply.as_ref().is_err_and(RedisError::is_io_error)
}

impl SentinelTarget {
    /// Queries all sentinels at once, and returns the reports of those that answer in time. Returns
    /// an error if none answers, or if the reports are outdated.
    pub(super) async fn query_sentinels(&self) -> Result<SentinelReports, ConnectError> {
        let queries = self.0.sentinels.iter().map(|sentinel| self.0.query(sentinel));
        let mut queries: FuturesUnordered<_> = queries.collect();
        let mut reports = SentinelReports::default();
        let (mut config_error, mut outage) = (None, None);
        let mut straggler_deadline = None;
        loop {
            let answer = match straggler_deadline {
                None => queries.next().await,
                Some(deadline) => timeout_at(deadline, queries.next()).await.unwrap_or(None),
            };
            match answer {
                Some(Ok(report)) => {
                    straggler_deadline
                        .get_or_insert_with(|| Instant::now() + self.0.straggler_grace);
                    if let Some(down_after) = report.down_after {
                        self.0.down_after_ms.store(ceil_millis(down_after), Ordering::Relaxed);
                    }
                    reports.add(report);
                }
                Some(Err(failure @ ConnectError::Config(_))) => config_error = Some(failure),
                Some(Err(failure)) => outage = Some(failure),
                None => break,
            }
        }
        // An unavailable sentinel might know the name. So its failure takes precedence over a
        // configuration error, such as a name that the others do not know.
        let failure = outage.or(config_error).unwrap_or(ConnectError::Unavailable);
        if reports.is_empty() {
            return Err(failure);
        }
        let is_outdated = self.0.epoch_guard.lock().rejects_as_outdated(
            &reports,
            self.sentinel_count(),
            Instant::now(),
        );
        if is_outdated { Err(ConnectError::Unavailable) } else { Ok(reports) }
    }
}

impl SentinelGroup {
    async fn query(&self, sentinel: &SentinelServer) -> Result<SentinelReport, ConnectError> {
        let idle_connection = sentinel.idle_connection.lock().take();
        let reply = match idle_connection {
            // An idle connection may be broken, for example after a restart of the sentinel. Its
            // failure says nothing about the sentinel, so a new connection is tried.
            Some(connection) => {
                Some(self.query_over(connection).await).filter(|reply| !is_io_failure(reply))
            }
            None => None,
        };
        let reply = match reply {
            Some(reply) => reply,
            None => self.query_over(sentinel.server.open_untracked().await?).await,
        };
        let (replies, connection) = reply.map_err(|error| ConnectError::from_redis(&error))?;
        *sentinel.idle_connection.lock() = Some(connection);
        let mut replies = replies.into_iter();
        let (address, properties) = (replies.next(), replies.next());
        self.parse_replies(address.unwrap_or(Value::Nil), properties.unwrap_or(Value::Nil))
    }

    /// Sends the query on a connection, and returns the replies with the connection.
    async fn query_over(&self, mut connection: MultiplexedConnection) -> SentinelReply {
        let mut pipe = redis::pipe();
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master_name);
        pipe.cmd("SENTINEL").arg("MASTER").arg(&self.master_name);
        connection.send_packed_commands(&pipe, 0, 2).await.map(|replies| (replies, connection))
    }

    /// Parses the replies. A name that the sentinels do not know is a configuration error; a master
    /// that is down is an outage.
    fn parse_replies(
        &self,
        address: Value,
        properties: Value,
    ) -> Result<SentinelReport, ConnectError> {
        let config = |sentence: &str| Err(ConnectError::Config(sentence.to_owned()));
        let address = match address {
            Value::ServerError(error)
                if error.details().is_some_and(|text| text.contains("unknown command")) =>
            {
                return config("one of the named sentinels is not a sentinel");
            }
            Value::ServerError(error) => return Err(ConnectError::from_redis(&error.into())),
            address => redis::from_redis_value::<Option<(String, u16)>>(address),
        };
        match address {
            Ok(Some((host, port))) => Ok(SentinelReport::new(HostPort { host, port }, properties)),
            Ok(None) => config("the sentinels know no master of this name"),
            Err(_) => Err(ConnectError::Unavailable),
        }
    }
}
