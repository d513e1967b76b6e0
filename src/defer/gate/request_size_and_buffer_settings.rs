//! Settings of `DeferLayer`: the sizes of a request that may be stored, and the memory and time for
//! reading it.

use std::time::Duration;

use super::defer_layer::DeferLayer;
use crate::{
    durations::MAX_DURATION,
    gate::{ClientAddress, RequestKind},
};

impl<R: RequestKind> DeferLayer<R> {
    /// Most bytes of a body; a request with a longer one gets the busy response. Default: 64 KiB,
    /// enough for a form or a document; files do not belong in Redis.
    ///
    /// A body is read only after its lock was found busy. It is refused before that if the client
    /// declares a longer one.
    ///
    /// Body and head together have to fit into half of the [`buffer_budget`](Self::buffer_budget),
    /// the share of a single client; a longer request is never deferred. If the two limits allow
    /// more than that, a warning is logged when the layer is applied to a service.
    #[must_use]
    pub fn body_limit(self, bytes: usize) -> Self {
        self.with_settings(|settings| settings.storage.body_limit = bytes)
    }

    /// Most bytes of the stored head: names and values of its headers, path, query and
    /// [owner](Self::owner), without headers that are [not stored](Self::keep_header). A request
    /// with a longer head gets the busy response.
    ///
    /// Default: 16 KiB, which is the limit of common servers and proxies, and a quarter of the
    /// longest body. Without a limit a client could fill the queue of a resource with a few
    /// requests, since hyper admits heads of 400 KiB. The head counts toward
    /// [`max_resource_bytes`](Self::max_resource_bytes) and the other limits of bytes, as the body
    /// does.
    #[must_use]
    pub fn head_limit(self, bytes: usize) -> Self {
        self.with_settings(|settings| settings.storage.head_limit = bytes)
    }

    /// Most bytes of heads and bodies of all requests that are being read and stored in this
    /// process. All `DeferLayer`s share the memory; each layer compares it with its own limit.
    /// Default: 64 MiB. Beyond it a request gets the busy response; it does not wait for memory.
    ///
    /// The bytes that have arrived of a body are reserved, and 8 KiB for its next chunk,
    /// independent of its `Content-Length`. A [client](Self::client_address) gets at most as much
    /// as it leaves free: half of the budget if it is alone, a third if two clients take that much.
    /// One client therefore cannot exclude the bodies of others.
    #[must_use]
    pub fn buffer_budget(self, bytes: usize) -> Self {
        self.with_settings(|settings| settings.storage.buffer_budget = bytes)
    }

    /// Client to which a share of the [`buffer_budget`](Self::buffer_budget) belongs. Default: the
    /// peer's address, IPv6 by /64 networks.
    ///
    /// Behind a proxy all clients would share the proxy's share, so configure it here as for
    /// `by_client`. Requests without a known address have one share together.
    ///
    /// Example: `.client_address(ClientAddress::behind_proxies(["10.0.0.0/8"]))`.
    #[must_use]
    pub fn client_address(self, client: ClientAddress) -> Self {
        self.with_settings(|settings| settings.storage.client = client)
    }

    /// Time for the arrival of a request's body, from when its lock was found busy. A slower
    /// request gets the busy response, and its part of the [`buffer_budget`](Self::buffer_budget)
    /// is freed. Default: 10 s, twice the time of 64 KiB over a poor mobile link.
    #[must_use]
    pub fn body_read_timeout(self, time: Duration) -> Self {
        self.with_settings(|settings| settings.storage.body_read_timeout = time.min(MAX_DURATION))
    }
}
