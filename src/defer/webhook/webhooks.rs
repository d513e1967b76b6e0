//! `Webhooks`: sender of webhooks over HTTPS.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, header};
use http_body_util::Full;
use hyper::rt::Executor;
use hyper_util::{client::legacy::Client, rt::TokioIo};
use parking_lot::Mutex;
use tokio::{net::TcpStream, task::JoinSet};
use url::Host;

use super::{
    address_policy::{AddressPolicy, WebhookTarget},
    deliver_webhook::{DeliveryOutcome, WebhookCall, WebhookSender},
    sign_webhook::sign_webhook,
};
use crate::{
    error::{Error, expect_setting},
    outbound::{
        FnConnector, OutboundError, TlsClientConfig, describe_error_chain, system_tls_config,
        with_tls,
    },
};

pub(super) type ResolveFn =
    dyn Fn(&str, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

/// Shortest secret, in bytes: the minimum of the specification. HMAC-SHA256 reaches its full
/// strength with 32.
const MIN_SECRET_LEN: usize = 24;

/// Sender of the webhooks of `DeferLayer::webhook`; pass it to a worker. See [the
/// module](crate::defer::webhook) for the request and the allowed addresses.
///
/// ```
/// # use std::{convert::Infallible, time::Duration};
/// # use http::{Request, Response};
/// # use lockgate::{Store, lock::LockLayer, middleware::PlainHttp};
/// # use lockgate::defer::{DeferLayer, DeferWorker, Webhooks};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # type Body = http_body_util::Full<bytes::Bytes>;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let handler = service_fn(async |_: Request<Body>| {
/// #     Ok::<_, Infallible>(Response::new(Body::default()))
/// # });
/// # let store = Store::memory();
/// let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
/// let defer = DeferLayer::<PlainHttp>::new()
///     .webhook(|_| Some("https://shop.example/hooks/refunds".to_owned()));
/// let service = defer.layer(lock.layer(handler));
///
/// let webhooks = Webhooks::new("at least 24 random bytes from a secret store")
///     .timeout(Duration::from_secs(5));
/// let worker = DeferWorker::<PlainHttp>::new(&store, service).webhooks(webhooks);
/// # drop(worker);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Webhooks {
    secrets: Vec<Arc<[u8]>>,
    address_policy: AddressPolicy,
    timeout: Duration,
    pub(super) resolver: Arc<ResolveFn>,
    pub(super) tls: TlsClientConfig,
}

impl Webhooks {
    /// Creates a sender that signs with this secret of at least 24 bytes. A receiver's library
    /// takes it as `whsec_` followed by its base64.
    ///
    /// Reads the system's root certificates. Without any, calls fail until the process is restarted
    /// on a system that has them.
    ///
    /// # Panics
    ///
    /// Panics if the secret is shorter than 24 bytes. For a secret from the environment use
    /// [`try_new`](Self::try_new).
    #[must_use]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        expect_setting(Self::try_new(secret))
    }

    /// Like [`new`](Self::new), for a secret from the environment.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the secret is shorter than 24 bytes.
    pub fn try_new(secret: impl AsRef<[u8]>) -> Result<Self, Error> {
        Ok(Self {
            secrets: vec![parse_secret(secret.as_ref())?],
            address_policy: AddressPolicy::default(),
            timeout: Duration::from_secs(10),
            resolver: Arc::new(|host, port| {
                let host = host.to_owned();
                Box::pin(async move {
                    tokio::net::lookup_host((host, port)).await.map(Iterator::collect)
                })
            }),
            tls: system_tls_config(true, "webhooks"),
        })
    }

    /// Adds a second signature with this secret, for key rotation: receivers learn the new secret
    /// first, then the old one is removed.
    ///
    /// # Panics
    ///
    /// Panics if the secret is shorter than 24 bytes. For a secret from the environment use
    /// [`try_also_signed_with`](Self::try_also_signed_with).
    #[must_use]
    pub fn also_signed_with(self, secret: impl AsRef<[u8]>) -> Self {
        expect_setting(self.try_also_signed_with(secret))
    }

    /// Like [`also_signed_with`](Self::also_signed_with), for a secret from the environment.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the secret is shorter than 24 bytes.
    pub fn try_also_signed_with(mut self, secret: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.secrets.push(parse_secret(secret.as_ref())?);
        Ok(self)
    }

    /// Allows addresses of this network (`10.1.0.0/16`), public or not.
    ///
    /// # Panics
    ///
    /// Panics if `network` can't be parsed. For a network from a configuration use
    /// [`try_allow_network`](Self::try_allow_network).
    #[must_use]
    pub fn allow_network(self, network: &str) -> Self {
        expect_setting(self.try_allow_network(network))
    }

    /// Like [`allow_network`](Self::allow_network), for a network from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `network` can't be parsed.
    pub fn try_allow_network(mut self, network: &str) -> Result<Self, Error> {
        let Ok(parsed) = network.parse() else {
            return Err(Error::setting(format!(
                "Webhooks::allow_network: {network:?} is not a network such as 10.1.0.0/16"
            )));
        };
        self.address_policy.allowed_networks.push(parsed);
        Ok(self)
    }

    /// Allows `http`. Such webhooks can be read on their way, and intercepted by any host that the
    /// name points to.
    #[must_use]
    pub fn allow_http(mut self) -> Self {
        self.address_policy.allow_http = true;
        self
    }

    /// Sets how long a call may take, including resolution and connection. Default 10 s.
    ///
    /// A receiver that needs longer should acknowledge first and work later: a worker makes few
    /// calls at once. The first attempts at a host that has not answered yet have less time: 2.5 s,
    /// 5 s, and so on.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    async fn resolve_and_send(&self, call: WebhookCall) -> DeliveryOutcome {
        let WebhookCall { url, id, body, receiver_slot, .. } = call;
        let target = match self.address_policy.parse_target(&url) {
            Ok(target) => target,
            Err(reason) => return DeliveryOutcome::AddressRefused(reason),
        };
        let addresses = match self.resolve_target(&target).await {
            Ok(addresses) => addresses,
            Err(error) => return DeliveryOutcome::Failed(error.to_string()),
        };
        if let Err(reason) = self.address_policy.check_addresses(&addresses) {
            return DeliveryOutcome::AddressRefused(reason);
        }
        if !receiver_slot.try_claim_addresses(&addresses) {
            return DeliveryOutcome::NoReceiverSlot;
        }
        match self.send(&target, addresses, &id, body).await {
            Ok(status) => DeliveryOutcome::Answered(status),
            Err(error) => DeliveryOutcome::Failed(describe_error_chain(&*error)),
        }
    }

    /// Resolves the host once, so that the connection goes to the addresses that were checked.
    async fn resolve_target(&self, target: &WebhookTarget) -> io::Result<Vec<SocketAddr>> {
        match &target.host {
            Host::Domain(name) => (self.resolver)(name, target.port).await,
            Host::Ipv4(ip) => Ok(vec![SocketAddr::new((*ip).into(), target.port)]),
            Host::Ipv6(ip) => Ok(vec![SocketAddr::new((*ip).into(), target.port)]),
        }
    }

    /// Returns the status of the response; its body is not read. The client serves this call only
    /// and pools nothing, so no connection outlives the check of its address.
    async fn send(
        &self,
        target: &WebhookTarget,
        addresses: Vec<SocketAddr>,
        id: &str,
        body: Bytes,
    ) -> Result<u16, OutboundError> {
        let (request, timeout) = (self.build_request(target, id, body)?, self.timeout);
        // Ignores the URL, so that only checked addresses are reached: `HttpConnector` does not
        // call a resolver for an IP literal.
        let tcp = FnConnector(move |_| connect_any(addresses.clone(), timeout));
        let client = Client::builder(WebhookConnectionTasks::default())
            .pool_max_idle_per_host(0)
            .build(with_tls(tcp, &self.tls));
        Ok(client.request(request).await?.status().as_u16())
    }

    fn build_request(
        &self,
        target: &WebhookTarget,
        id: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, OutboundError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let sign = |secret: &Arc<[u8]>| sign_webhook(secret, id, now, &body);
        let signatures: Vec<_> = self.secrets.iter().map(sign).collect();
        let request = Request::post(target.url.as_str())
            .header(header::USER_AGENT, concat!("lockgate/", env!("CARGO_PKG_VERSION")))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .header("webhook-id", id)
            .header("webhook-timestamp", now)
            .header("webhook-signature", signatures.join(" "));
        Ok(request.body(Full::new(body))?)
    }
}

impl WebhookSender for Webhooks {
    fn deliver(&self, call: WebhookCall) -> BoxFuture<'static, DeliveryOutcome> {
        let mut sender = self.clone();
        let max_time = call.receiver_slot.attempt_timeout(call.attempt).unwrap_or(Duration::MAX);
        // Addresses that are tried in succession share this time too.
        sender.timeout = sender.timeout.min(max_time);
        Box::pin(async move {
            let outcome = tokio::time::timeout(sender.timeout, sender.resolve_and_send(call)).await;
            outcome.unwrap_or_else(|_| DeliveryOutcome::Failed("no response in time".to_owned()))
        })
    }
}

/// Connects to the addresses in succession. All but the last share half of the time, so that an
/// unresponsive one leaves time for the others.
async fn connect_any(
    addresses: Vec<SocketAddr>,
    timeout: Duration,
) -> io::Result<TokioIo<TcpStream>> {
    let Some((last, earlier)) = addresses.split_last() else {
        return Err(io::Error::other("the host has no address"));
    };
    let connect_timeout = timeout / 2 / u32::try_from(earlier.len()).unwrap_or(u32::MAX).max(1);
    for address in earlier {
        if let Ok(Ok(stream)) =
            tokio::time::timeout(connect_timeout, TcpStream::connect(address)).await
        {
            return Ok(TokioIo::new(stream));
        }
    }
    TcpStream::connect(last).await.map(TokioIo::new)
}

/// Tasks of one call's connection. They are aborted when the call ends, so that a receiver that
/// does not read cannot keep the socket open.
#[derive(Clone, Default)]
struct WebhookConnectionTasks(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for WebhookConnectionTasks {
    fn execute(&self, task: F) {
        self.0.lock().spawn(task);
    }
}

fn parse_secret(secret: &[u8]) -> Result<Arc<[u8]>, Error> {
    let length = secret.len();
    if length < MIN_SECRET_LEN {
        return Err(Error::setting(format!(
            "Webhooks: a secret needs at least {MIN_SECRET_LEN} bytes, not {length}"
        )));
    }
    Ok(secret.into())
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secrets are not logged.
        f.debug_struct("Webhooks")
            .field("secrets", &self.secrets.len())
            .field("address_policy", &self.address_policy)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
