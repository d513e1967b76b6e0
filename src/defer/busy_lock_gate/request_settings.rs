//! Settings of `DeferLayer`: the parts of a request that are stored, and the memory for reading it.

use std::time::Duration;

use super::defer_layer::DeferLayer;
use crate::{
    durations::MAX_DURATION,
    gate::{ClientAddress, RequestKind, parse_header_name},
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

    /// Stores a header that is dropped by default because it is a credential.
    ///
    /// Without this setting, a request with a credential is deferred only if the layer
    /// [carries](Self::carry_extension) its user; a warning is logged once for each header. A
    /// stored credential stays in the store while the request waits, and the run presents it as it
    /// was, so it may have expired by then. It does not identify an [owner](Self::owner): if the
    /// layer carries a snapshot and the request has none, its `Idempotency-Key` gets 500.
    ///
    /// Credentials are, in any case:
    ///
    /// - `Authorization`, `Proxy-Authorization`, and all names that end with `-Authorization`,
    ///   which are copies by proxies
    /// - `Cookie`
    /// - `Api-Key`, `ApiKey`, `Api-Token`, `Auth-Key`, `Access-Key`, `Secret-Key`, `Client-Secret`,
    ///   `Auth-Token`, `Authentication-Token`, `Authorization-Token`, `Access-Token`,
    ///   `Refresh-Token`, `Id-Token`, `Bearer-Token`, `Session-Token`, `User-Token`,
    ///   `Subject-Token`, `Service-Token`, `Storage-Token`, `Jwt`, `Jwt-Token` and `Jwt-Assertion`,
    ///   and all names that end with a hyphen and one of these, such as `X-Api-Key` and
    ///   `X-Forwarded-Access-Token`
    /// - `X-Token`
    /// - `X-Amz-Security-Token` and `X-Amzn-Oidc-*` of AWS, `X-Ms-Token-*`,
    ///   `X-Ms-Authorization-Auxiliary`, `X-Functions-Key` and `Ocp-Apim-Subscription-Key` of
    ///   Azure, `X-RapidApi-Key`
    /// - `Private-Token`, `Job-Token`, `Deploy-Token` and `X-Gitlab-Token` of GitLab,
    ///   `X-Vault-Token` and `X-Consul-Token` of HashiCorp
    /// - the headers of [`credential_header`](Self::credential_header)
    ///
    /// CSRF tokens are stored, since they are useless without the cookie.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name.
    #[must_use]
    pub fn keep_header(self, name: &str) -> Self {
        let name = parse_header_name("DeferLayer::keep_header", name);
        self.with_settings(|settings| settings.storage.header_filter.keep_headers.push(name))
    }

    /// Declares a header, such as `X-Pass`, as a credential, like `Authorization` and the other
    /// headers that [`keep_header`](Self::keep_header) lists. It is not stored, and a request with
    /// it is deferred only if the layer [carries](Self::carry_extension) its user or the header is
    /// kept. Without this setting the header is stored with the request.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name.
    #[must_use]
    pub fn credential_header(self, name: &str) -> Self {
        let name = parse_header_name("DeferLayer::credential_header", name);
        self.with_settings(|settings| settings.storage.header_filter.credential_headers.push(name))
    }
}
