//! `Callbacks`: makes the calls.

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
    signature::sign_webhook,
    webhook_job::{DeliveryOutcome, WebhookCall, WebhookSender},
};
use crate::outbound::{
    FnConnector, OutboundError, TlsClientConfig, describe_error_chain, system_tls_config, with_tls,
};

pub(super) type ResolveFn =
    dyn Fn(&str, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

/// Shortest secret: what HMAC-SHA256 needs to be as strong as it can be is 32, what the specification
/// asks for at least is 24.
const MIN_SECRET_LEN: usize = 24;

/// Makes the calls of `DeferLayer::webhook`; to be given to a worker. See
/// [the module](crate::defer::callback) for what is sent, and where it may go.
#[derive(Clone)]
pub struct Webhooks {
    secrets: Vec<Arc<[u8]>>,
    address_policy: AddressPolicy,
    timeout: Duration,
    pub(super) resolver: Arc<ResolveFn>,
    pub(super) tls: TlsClientConfig,
}

impl Webhooks {
    /// Signs with this secret, of 24 bytes at least. A receiver's library takes it as `whsec_` and its
    /// base64.
    ///
    /// The system's roots are read now. If there are none, calls fail until the process is started where
    /// there are.
    ///
    /// # Panics
    ///
    /// If the secret is shorter.
    #[must_use]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        Self {
            secrets: vec![checked_secret(secret.as_ref())],
            address_policy: AddressPolicy::default(),
            timeout: Duration::from_secs(10),
            resolver: Arc::new(|host, port| {
                let host = host.to_owned();
                Box::pin(async move {
                    tokio::net::lookup_host((host, port)).await.map(Iterator::collect)
                })
            }),
            tls: system_tls_config(true, "callbacks"),
        }
    }

    /// Signs with this one as well, so that receivers can change over: first they learn of the new secret,
    /// then the old one goes.
    ///
    /// # Panics
    ///
    /// If it is shorter than 24 bytes.
    #[must_use]
    pub fn also_signed_with(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.secrets.push(checked_secret(secret.as_ref()));
        self
    }

    /// Allows addresses of this network (`10.1.0.0/16`), public or not.
    ///
    /// # Panics
    ///
    /// If it is none.
    #[must_use]
    #[expect(clippy::panic, reason = "a slip in the wiring, told as the service starts")]
    pub fn allow_network(mut self, network: &str) -> Self {
        match network.parse() {
            Ok(network) => self.address_policy.allowed_networks.push(network),
            Err(_) => {
                panic!("Callbacks::allow_network: {network:?} is no network like 10.1.0.0/16")
            }
        }
        self
    }

    /// Allows `http`: whoever is on the way can read it, and who is where the name points to can take it.
    #[must_use]
    pub fn allow_http(mut self) -> Self {
        self.address_policy.allow_http = true;
        self
    }

    /// How long a call may take, its name and connection included. Default 10 s: a receiver that
    /// takes longer for an acknowledgement had better put the work behind it, and a worker has few calls at once. The first
    /// attempts at a host that has not answered yet have less: 2.5 s, 5 s, and so on.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    async fn attempt(&self, call: WebhookCall) -> DeliveryOutcome {
        let WebhookCall { url, id, body, receiver_slot: turn, .. } = call;
        let target = match self.address_policy.parse_target(&url) {
            Ok(target) => target,
            Err(why) => return DeliveryOutcome::AddressRefused(why),
        };
        let addresses = match self.resolve_target(&target).await {
            Ok(addresses) => addresses,
            Err(error) => return DeliveryOutcome::Failed(error.to_string()),
        };
        if let Err(why) = self.address_policy.check_addresses(&addresses) {
            return DeliveryOutcome::AddressRefused(why);
        }
        if !turn.try_claim_addresses(&addresses) {
            return DeliveryOutcome::NoReceiverSlot;
        }
        match self.send(&target, addresses, &id, body).await {
            Ok(status) => DeliveryOutcome::Answered(status),
            Err(error) => DeliveryOutcome::Failed(describe_error_chain(&*error)),
        }
    }

    /// Once: what has been checked is what is connected to.
    async fn resolve_target(&self, target: &WebhookTarget) -> io::Result<Vec<SocketAddr>> {
        match &target.host {
            Host::Domain(name) => (self.resolver)(name, target.port).await,
            Host::Ipv4(ip) => Ok(vec![SocketAddr::new((*ip).into(), target.port)]),
            Host::Ipv6(ip) => Ok(vec![SocketAddr::new((*ip).into(), target.port)]),
        }
    }

    /// Returns the status of the answer, whose body is not read. The client is of this call alone
    /// and pools nothing, so no connection outlives the check of its address.
    async fn send(
        &self,
        target: &WebhookTarget,
        addresses: Vec<SocketAddr>,
        id: &str,
        body: Bytes,
    ) -> Result<u16, OutboundError> {
        let (request, timeout) = (self.build_request(target, id, body)?, self.timeout);
        // Ignores the URL, so that only checked addresses are reached: `HttpConnector` asks no
        // resolver about an IP literal.
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
        let mut this = self.clone();
        let longest = call.receiver_slot.attempt_timeout(call.attempt).unwrap_or(Duration::MAX);
        // Addresses one after the other share it, too.
        this.timeout = this.timeout.min(longest);
        Box::pin(async move {
            let made = tokio::time::timeout(this.timeout, this.attempt(call)).await;
            made.unwrap_or_else(|_| DeliveryOutcome::Failed("no answer in time".to_owned()))
        })
    }
}

/// Connects to one address after the other. One that does not answer leaves time for those behind it: half of it is for all but
/// the last.
async fn connect_any(
    addresses: Vec<SocketAddr>,
    timeout: Duration,
) -> io::Result<TokioIo<TcpStream>> {
    let Some((last, others)) = addresses.split_last() else {
        return Err(io::Error::other("the name has no address"));
    };
    let each = timeout / 2 / u32::try_from(others.len()).unwrap_or(u32::MAX).max(1);
    for address in others {
        if let Ok(Ok(stream)) = tokio::time::timeout(each, TcpStream::connect(address)).await {
            return Ok(TokioIo::new(stream));
        }
    }
    TcpStream::connect(last).await.map(TokioIo::new)
}

/// Tasks of one call's connection. They are aborted when the call ends, so that a receiver that
/// reads nothing cannot keep the socket open.
#[derive(Clone, Default)]
struct WebhookConnectionTasks(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for WebhookConnectionTasks {
    fn execute(&self, task: F) {
        self.0.lock().spawn(task);
    }
}

fn checked_secret(secret: &[u8]) -> Arc<[u8]> {
    let length = secret.len();
    assert!(
        length >= MIN_SECRET_LEN,
        "Callbacks: a secret of {length} bytes; take {MIN_SECRET_LEN} at least"
    );
    secret.into()
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secrets.
        f.debug_struct("Webhooks")
            .field("secrets", &self.secrets.len())
            .field("address_policy", &self.address_policy)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
