//! The master of a name, as sentinels know it at the time.
//!
//! Asked anew for each connection: a master that has been demoted refuses writes, its sockets are
//! condemned, and the next connection goes to its successor. All sentinels are asked at once and the
//! first that names a server which calls itself a master is believed, so one that hangs costs nothing.

use std::sync::Arc;

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use redis::{
    Client, ErrorKind as RedisErrorKind, ProtocolVersion, RedisError,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};

use super::{
    Connection, Failure, Messages, One, Settings, one, tls,
    tls::Trust,
    url::{Address, Login, Node},
};

#[derive(Clone)]
pub(in super::super) struct Sentinels(Arc<Watched>);

struct Watched {
    sentinels: Vec<Sentinel>,
    master: String,
    tls: bool,
    login: Login,
    sentinel_login: Login,
    database: u32,
    #[cfg(feature = "tls")]
    trust: Trust,
}

/// One of them.
struct Sentinel {
    node: Node,
    /// With its connection. Taken out while in use: a question that is dropped half way leaves no
    /// connection that may be dead.
    kept: Mutex<Option<SentinelClient>>,
}

impl Sentinels {
    pub(super) fn new(
        nodes: Vec<Node>,
        master: String,
        address: &Address,
        trust: &Trust,
    ) -> Result<Self, Failure> {
        #[cfg(not(feature = "tls"))]
        let _ = trust;
        let sentinel = |node| Sentinel { node, kept: Mutex::new(None) };
        let watched = Watched {
            sentinels: nodes.into_iter().map(sentinel).collect(),
            master,
            tls: address.tls,
            login: address.login.clone(),
            sentinel_login: address.sentinel_login.clone(),
            database: address.database.unwrap_or(0),
            #[cfg(feature = "tls")]
            trust: trust.clone(),
        };
        // What can't be used is told now.
        for sentinel in &watched.sentinels {
            watched.client(sentinel).map_err(|_| Failure::unusable())?;
        }
        Ok(Self(Arc::new(watched)))
    }

    pub(super) async fn open(&self, settings: &Settings) -> Result<Connection, Failure> {
        One::to(self.master().await?).open(settings).await
    }

    pub(super) async fn subscribe(&self, channels: &[&str]) -> Result<Messages, Failure> {
        One::to(self.master().await?).subscribe(channels).await
    }

    async fn master(&self) -> Result<Client, Failure> {
        let asked = self.0.sentinels.iter().map(|sentinel| self.0.ask(sentinel));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut why = Failure::Away;
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(master) => return Ok(master),
                Err(Failure::Away) => {}
                Err(wrong @ Failure::Config(_)) => why = wrong,
            }
        }
        Err(why)
    }
}

impl Watched {
    async fn ask(&self, sentinel: &Sentinel) -> Result<Client, Failure> {
        let kept = sentinel.kept.lock().take();
        let mut client = match kept {
            Some(client) => client,
            None => self.client(sentinel).map_err(|error| Failure::of(&error))?,
        };
        match client.async_get_client().await {
            Ok(master) => {
                *sentinel.kept.lock() = Some(client);
                Ok(master)
            }
            Err(error) => Err(self.explain(client, &error).await),
        }
    }

    /// A name that sentinels do not know is a mistake; a master that is down is an outage.
    async fn explain(&self, mut client: SentinelClient, error: &RedisError) -> Failure {
        match error.kind() {
            RedisErrorKind::MasterNameNotFoundBySentinel => {}
            RedisErrorKind::InvalidClientConfig => {
                return Failure::Config("one of the sentinels named is no sentinel".to_owned());
            }
            _ => return Failure::of(error),
        }
        let known = async {
            let sentinel = client.async_get_sentinel_client().await?;
            let mut connection = sentinel.get_multiplexed_async_connection().await?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
            command.query_async::<Option<(String, u16)>>(&mut connection).await
        };
        match known.await {
            Ok(None) => Failure::Config("the sentinels know no master of this name".to_owned()),
            _ => Failure::of(error),
        }
    }

    fn client(&self, sentinel: &Sentinel) -> Result<SentinelClient, RedisError> {
        let address = tls::address(&sentinel.node, self.tls);
        let mut client =
            SentinelClientBuilder::new([address], &self.master, SentinelServerType::Master)?
                .set_client_to_redis_db(self.database.into())
                .set_client_to_redis_protocol(ProtocolVersion::RESP3)
                .set_client_to_redis_tcp_settings(one::tcp())
                .set_client_to_sentinel_tcp_settings(one::tcp());
        if let Some(user) = &self.login.user {
            client = client.set_client_to_redis_username(user);
        }
        if let Some(password) = &self.login.password {
            client = client.set_client_to_redis_password(password);
        }
        if let Some(user) = &self.sentinel_login.user {
            client = client.set_client_to_sentinel_username(user);
        }
        if let Some(password) = &self.sentinel_login.password {
            client = client.set_client_to_sentinel_password(password);
        }
        self.secured(client).build()
    }

    #[cfg(feature = "tls")]
    fn secured(&self, client: SentinelClientBuilder) -> SentinelClientBuilder {
        if !self.tls {
            return client;
        }
        let client = client.set_client_to_redis_tls_mode(redis::TlsMode::Secure);
        match self.trust.certificates() {
            Some(certificates) => client
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates),
            None => client,
        }
    }

    #[cfg(not(feature = "tls"))]
    fn secured(&self, client: SentinelClientBuilder) -> SentinelClientBuilder {
        client
    }
}
