//! The master of a name, as sentinels know it at the time.
//!
//! Asked anew for each connection: a master that has been demoted refuses writes, its sockets are
//! condemned, and the next connection goes to its successor. All sentinels are asked at once. The latest
//! configuration is believed ([`named`]): its number is higher after each failover, and only a majority can
//! begin one, so on the wrong side of a partition a sentinel has an old one. Who does not answer soon after the
//! first is not waited for; so what one has told is kept ([`epoch_guard`]), and an older one is not gone back to while he
//! is late.
//!
//! # A master that is replaced
//!
//! It may be alive: it stood still and wakes, or the failover was asked for. It takes writes until somebody tells it
//! otherwise, eight seconds after its successor does, and what it took is thrown away. So
//!
//! - no connection is made to a master whose failover is under way, as the sentinel that leads it tells;
//! - connections are ended when sentinels say that a successor is about to be promoted, or is there
//!   ([`SentinelTarget::handle_failover_message`]; a hint);
//! - a connection that was silent for half the time after which sentinels take a master for gone is not used again
//!   ([`SentinelTarget::max_silence`]). So whatever stood still long enough to be replaced is asked for anew, also if no hint came.

mod epoch_guard;
mod sentinel_reports;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use redis::{Msg, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tokio::time::{Instant, timeout_at};

use self::{
    epoch_guard::EpochGuard,
    sentinel_reports::{SentinelReport, SentinelReports},
};
use super::{
    ConnectError, ConnectionSettings, MessageStream, OpenedConnection, SingleServer,
    redis_tls_settings,
    redis_tls_settings::RedisTlsSettings,
    store_url::{HostPort, LoginCredentials, StoreUrl},
};
use crate::clock::ceil_millis;

/// How long the others may take when the first has answered, at most.
const STRAGGLER_GRACE: Duration = Duration::from_millis(100);

/// What they say when they have begun to replace a master, and when they have.
const FAILOVER_CHANNELS: [&str; 2] = ["+failover-state-send-slaveof-noone", "+switch-master"];

#[derive(Clone)]
pub(in super::super) struct SentinelTarget(Arc<SentinelGroup>);

struct SentinelGroup {
    sentinels: Vec<SentinelServer>,
    master_name: String,
    /// How servers are talked to, whichever is the master.
    url: StoreUrl,
    tls: RedisTlsSettings,
    straggler_grace: Duration,
    /// After how many ms of silence sentinels take the master for gone; 0 as long as none has told.
    down_after_ms: AtomicU64,
    /// Connections there are: to which master, and what makes them dead.
    connections: Mutex<Vec<(HostPort, Weak<AtomicBool>)>>,
    epoch_guard: Mutex<EpochGuard>,
    /// How many words there were.
    failovers_announced: AtomicU64,
}

/// One of them.
struct SentinelServer {
    server: SingleServer,
    /// Taken out while in use: a question that is dropped half way leaves no connection that may be dead.
    idle_connection: Mutex<Option<MultiplexedConnection>>,
}

type SentinelReply = RedisResult<(Vec<Value>, MultiplexedConnection)>;

fn is_io_failure(asked: &SentinelReply) -> bool {
    asked.as_ref().is_err_and(RedisError::is_io_error)
}

impl SentinelTarget {
    pub(super) fn new(
        nodes: &[HostPort],
        master: String,
        address: &StoreUrl,
        trust: &RedisTlsSettings,
        within: Duration,
    ) -> Result<Self, ConnectError> {
        let own = StoreUrl {
            credentials: address.sentinel_credentials.clone(),
            database: None,
            ..address.clone()
        };
        let sentinel = |node| {
            // What can't be used is told now.
            let server = SingleServer::new_sentinel(
                redis_tls_settings::connection_addr(node, address.tls),
                &own,
                trust,
            )?;
            Ok(SentinelServer { server, idle_connection: Mutex::new(None) })
        };
        Ok(Self(Arc::new(SentinelGroup {
            sentinels: nodes.iter().map(sentinel).collect::<Result<_, ConnectError>>()?,
            master_name: master,
            url: StoreUrl { sentinel_credentials: LoginCredentials::default(), ..address.clone() },
            tls: trust.clone(),
            straggler_grace: (within / 4).min(STRAGGLER_GRACE),
            down_after_ms: AtomicU64::new(0),
            connections: Mutex::default(),
            epoch_guard: Mutex::default(),
            failovers_announced: AtomicU64::new(0),
        })))
    }

    pub(super) async fn open(
        &self,
        settings: &ConnectionSettings,
    ) -> Result<OpenedConnection, ConnectError> {
        let before = self.0.failovers_announced.load(Ordering::Acquire);
        let master = self.current_master().await?;
        // From here on it is ended when that is no master any more.
        self.0.track_connection(&master, &settings.disconnected);
        if self.0.failovers_announced.load(Ordering::Acquire) != before {
            return Err(ConnectError::Unavailable);
        }
        let connection = self.0.server_at(&master)?.open(settings).await?;
        Ok(OpenedConnection { connection, endpoint: Some((master.host, master.port)) })
    }

    pub(super) async fn subscribe(
        &self,
        channels: &[String],
    ) -> Result<MessageStream, ConnectError> {
        self.0.server_at(&self.current_master().await?)?.subscribe(channels).await
    }

    /// How long a connection may have been silent, and still be used: half of what a failover takes at least.
    pub(super) fn max_silence(&self) -> Option<Duration> {
        let down_after = self.0.down_after_ms.load(Ordering::Relaxed);
        (down_after > 0).then(|| Duration::from_millis(down_after) / 2)
    }

    /// How many there are.
    pub(in super::super) fn sentinel_count(&self) -> usize {
        self.0.sentinels.len()
    }

    /// What this one says of failovers.
    pub(in super::super) async fn subscribe_to_failovers(
        &self,
        number: usize,
    ) -> Result<MessageStream, ConnectError> {
        let sentinel = self.0.sentinels.get(number).ok_or(ConnectError::Unavailable)?;
        sentinel.server.subscribe(&FAILOVER_CHANNELS.map(str::to_owned)).await
    }

    /// Ends connections to a master that is no more, or soon will not be.
    pub(in super::super) fn handle_failover_message(&self, message: &Msg) {
        let Ok(text) = std::str::from_utf8(message.get_payload_bytes()) else { return };
        let words: Vec<&str> = text.split(' ').collect();
        match (message.get_channel_name(), words.as_slice()) {
            // `<name> <old address> <old port> <new address> <new port>`
            ("+switch-master", [name, _, _, host, port]) if *name == self.0.master_name => {
                if let Ok(port) = port.parse() {
                    self.0.failovers_announced.fetch_add(1, Ordering::AcqRel);
                    self.0.disconnect_all_but(Some(&HostPort { host: (*host).to_owned(), port }));
                }
            }
            // `slave <name> <address> <port> @ <master's name> <its address> <its port>`
            ("+failover-state-send-slaveof-noone", [.., name, _, _])
                if *name == self.0.master_name =>
            {
                self.0.failovers_announced.fetch_add(1, Ordering::AcqRel);
                self.0.disconnect_all_but(None);
            }
            _ => {}
        }
    }

    /// As if it had been heard: what was said while nobody listened.
    pub(in super::super) async fn check_for_failover(&self) {
        match self.query_sentinels().await {
            Ok(named) if named.is_failing_over() => {
                self.0.failovers_announced.fetch_add(1, Ordering::AcqRel);
                self.0.disconnect_all_but(None);
            }
            Ok(named) => {
                if let Some(master) = named.into_master() {
                    self.0.disconnect_all_but(Some(&master));
                }
            }
            Err(_) => {}
        }
    }

    async fn current_master(&self) -> Result<HostPort, ConnectError> {
        self.query_sentinels().await?.into_master().ok_or(ConnectError::Unavailable)
    }

    async fn query_sentinels(&self) -> Result<SentinelReports, ConnectError> {
        let asked = self.0.sentinels.iter().map(|sentinel| self.0.query(sentinel));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut named, mut wrong, mut away) = (SentinelReports::default(), None, None);
        let mut until = None;
        loop {
            let answer = match until {
                None => asked.next().await,
                Some(until) => timeout_at(until, asked.next()).await.unwrap_or(None),
            };
            match answer {
                Some(Ok(told)) => {
                    until.get_or_insert_with(|| Instant::now() + self.0.straggler_grace);
                    if let Some(down_after) = told.down_after {
                        self.0.down_after_ms.store(ceil_millis(down_after), Ordering::Relaxed);
                    }
                    named.add(told);
                }
                Some(Err(failure @ (ConnectError::Unavailable | ConnectError::Refused(_)))) => {
                    away = Some(failure)
                }
                Some(Err(failure)) => wrong = Some(failure),
                None => break,
            }
        }
        // One that is away might know: what the others do not know is no mistake then.
        let why = away.or(wrong).unwrap_or(ConnectError::Unavailable);
        if named.is_empty() {
            return Err(why);
        }
        let outdated = self.0.epoch_guard.lock().rejects_as_outdated(
            &named,
            self.sentinel_count(),
            Instant::now(),
        );
        if outdated { Err(ConnectError::Unavailable) } else { Ok(named) }
    }
}

impl SentinelGroup {
    fn server_at(&self, node: &HostPort) -> Result<SingleServer, ConnectError> {
        SingleServer::new(
            redis_tls_settings::connection_addr(node, self.url.tls),
            &self.url,
            &self.tls,
        )
    }

    fn track_connection(&self, master: &HostPort, gone: &Arc<AtomicBool>) {
        let mut made = self.connections.lock();
        made.retain(|(_, dead)| dead.strong_count() > 0);
        made.push((master.clone(), Arc::downgrade(gone)));
    }

    fn disconnect_all_but(&self, master: Option<&HostPort>) {
        let made = self.connections.lock();
        let others = made.iter().filter(|(node, _)| master != Some(node));
        for dead in others.filter_map(|(_, dead)| dead.upgrade()) {
            dead.store(true, Ordering::Release);
        }
    }

    async fn query(&self, sentinel: &SentinelServer) -> Result<SentinelReport, ConnectError> {
        let kept = sentinel.idle_connection.lock().take();
        let asked = match kept {
            // It may have broken long ago, as where the sentinel was restarted: that is no word of the sentinel.
            Some(kept) => Some(self.query_over(kept).await).filter(|asked| !is_io_failure(asked)),
            None => None,
        };
        let asked = match asked {
            Some(asked) => asked,
            None => self.query_over(sentinel.server.open_untracked().await?).await,
        };
        let (answers, connection) = asked.map_err(|error| ConnectError::from_redis(&error))?;
        *sentinel.idle_connection.lock() = Some(connection);
        let mut answers = answers.into_iter();
        let (address, facts) = (answers.next(), answers.next());
        self.parse_replies(address.unwrap_or(Value::Nil), facts.unwrap_or(Value::Nil))
    }

    /// What is answered by this connection, and the connection.
    async fn query_over(&self, mut connection: MultiplexedConnection) -> SentinelReply {
        let mut pipe = redis::pipe();
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master_name);
        pipe.cmd("SENTINEL").arg("MASTER").arg(&self.master_name);
        connection.send_packed_commands(&pipe, 0, 2).await.map(|answers| (answers, connection))
    }

    /// A name that sentinels do not know is a mistake; a master that is down is an outage.
    fn parse_replies(&self, address: Value, facts: Value) -> Result<SentinelReport, ConnectError> {
        let config = |sentence: &str| Err(ConnectError::Config(sentence.to_owned()));
        let address = match address {
            Value::ServerError(error)
                if error.details().is_some_and(|text| text.contains("unknown command")) =>
            {
                return config("one of the sentinels named is no sentinel");
            }
            Value::ServerError(error) => return Err(ConnectError::from_redis(&error.into())),
            address => redis::from_redis_value::<Option<(String, u16)>>(address),
        };
        match address {
            Ok(Some((host, port))) => Ok(SentinelReport::new(HostPort { host, port }, facts)),
            Ok(None) => config("the sentinels know no master of this name"),
            Err(_) => Err(ConnectError::Unavailable),
        }
    }
}
