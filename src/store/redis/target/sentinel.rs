//! The master of a name, as sentinels know it at the time.
//!
//! Asked anew for each connection: a master that has been demoted refuses writes, its sockets are
//! condemned, and the next connection goes to its successor. All sentinels are asked at once for a server
//! that calls itself a master. One that most of them name is believed: on the wrong side of a partition a
//! sentinel still names a master that has a successor. If no server has most of them, the one that is
//! named most often by those that answer in time, so sentinels that are away cost little.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use redis::{
    Client, ErrorKind as RedisErrorKind, ProtocolVersion, RedisError,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use tokio::time::{Instant, timeout_at};

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
    /// How long the others may take when the first has answered.
    grace: Duration,
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
        within: Duration,
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
            grace: within / 4,
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

    pub(super) async fn subscribe(&self, channels: &[String]) -> Result<Messages, Failure> {
        One::to(self.master().await?).subscribe(channels).await
    }

    async fn master(&self) -> Result<Client, Failure> {
        let asked = self.0.sentinels.iter().map(|sentinel| self.0.ask(sentinel));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut named, mut why) = (Named::default(), Failure::Away);
        let mut until = None;
        loop {
            let answer = match until {
                None => asked.next().await,
                Some(until) => timeout_at(until, asked.next()).await.unwrap_or(None),
            };
            match answer {
                Some(Ok(master)) => {
                    until.get_or_insert_with(|| Instant::now() + self.0.grace);
                    if named.again(master) > self.0.sentinels.len() / 2 {
                        break;
                    }
                }
                Some(Err(Failure::Away)) => {}
                Some(Err(wrong @ Failure::Config(_))) => why = wrong,
                None => break,
            }
        }
        named.most().ok_or(why)
    }
}

/// Masters, and how many sentinels name each.
#[derive(Default)]
struct Named(Vec<(Client, usize)>);

impl Named {
    /// By how many by now.
    fn again(&mut self, master: Client) -> usize {
        let address = |client: &Client| client.get_connection_info().addr().to_string();
        let own = address(&master);
        let Some((_, times)) = self.0.iter_mut().find(|(client, _)| address(client) == own) else {
            self.0.push((master, 1));
            return 1;
        };
        *times += 1;
        *times
    }

    /// Of those that are named as often, the first.
    fn most(self) -> Option<Client> {
        self.0.into_iter().rev().max_by_key(|(_, times)| *times).map(|(client, _)| client)
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
