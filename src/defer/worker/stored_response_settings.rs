//! Settings of `DeferWorker`: the stored part of a response, and the retention of ended jobs.

use std::time::Duration;

use super::{DeferWorker, worker_settings::MIN_RETENTION};
use crate::{
    durations::MAX_DURATION,
    error::{Error, expect_setting},
    gate::try_parse_header_name,
};

impl<R> DeferWorker<R> {
    /// Most bytes of a response body that are stored. Default: 1 MiB, which stays in Redis for a
    /// day. Of a longer body, and of a stream, only status and headers are stored.
    ///
    /// A body that is not stored is still read to its end, since the handler may do its work
    /// meanwhile; an endless body takes the whole time of the run. The exception is
    /// `text/event-stream`: its body is not read, and the run ends with the head.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.settings.response_limit = bytes;
        self
    }

    /// Stores this response header too. By default only headers are stored that describe the body
    /// or restrict the use that a browser may make of it. `Set-Cookie` is stored only if it is
    /// named here, since a reader of the status resource is not necessarily its recipient.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. For a name from a configuration use
    /// [`try_keep_response_header`](Self::try_keep_response_header).
    pub fn keep_response_header(self, name: &str) -> Self {
        expect_setting(self.try_keep_response_header(name))
    }

    /// Like [`keep_response_header`](Self::keep_response_header), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_keep_response_header(mut self, name: &str) -> Result<Self, Error> {
        let name = try_parse_header_name("DeferWorker::keep_response_header", name)?;
        self.settings.settlement_rules.keep_headers.push(name);
        Ok(self)
    }

    /// Time for which finished requests and their responses are kept. Default: one day, for clients
    /// that ask again after a night.
    ///
    /// At least a minute: the stored job distinguishes a new request from a repeated call of an
    /// enqueue that got no reply.
    ///
    /// Each of the 64 shards of a store keeps the newest that fit into a 64th of
    /// [`max_ended_bytes`](crate::defer::DeferLayer::max_ended_bytes), 16 MiB by default. Beyond
    /// that the oldest one of the largest owner is evicted early and leaves a tombstone. That is
    /// room for 15 responses of 1 MiB, the default [limit](Self::response_limit).
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Store, lock::LockLayer, middleware::PlainHttp};
    /// # use lockgate::defer::{DeferLayer, DeferWorker};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// # let store = Store::memory();
    /// # let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
    /// # let service = DeferLayer::<PlainHttp>::new().layer(lock.layer(handler));
    /// let hour = Duration::from_secs(3600);
    /// let worker = DeferWorker::<PlainHttp>::new(&store, service)
    ///     .done_retention(2 * hour)
    ///     .dead_retention(30 * 24 * hour);
    /// # drop(worker);
    /// # Ok(()) }
    /// ```
    pub fn done_retention(mut self, retention: Duration) -> Self {
        self.settings.settlement_rules.done_retention =
            retention.clamp(MIN_RETENTION, MAX_DURATION);
        self
    }

    /// Time for which dead letters are kept. Default: one week, to survive a weekend until an
    /// operator looks. At least a minute, as [`done_retention`](Self::done_retention).
    ///
    /// Each of the 64 shards of a store keeps the newest 10,000, within a 64th of
    /// [`max_ended_bytes`](crate::defer::DeferLayer::max_ended_bytes); beyond that the oldest is
    /// evicted early.
    pub fn dead_retention(mut self, retention: Duration) -> Self {
        self.settings.settlement_rules.dead_retention =
            retention.clamp(MIN_RETENTION, MAX_DURATION);
        self
    }
}
