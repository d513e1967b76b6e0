//! Connection target behind sentinels: the current master of a name.
//!
//! Each new connection asks all sentinels at once. A demoted master refuses writes, its connections
//! are marked as dead, and the next connection goes to its successor.
//!
//! - The report with the highest configuration epoch wins ([`sentinel_reports`]). The epoch grows
//!   with each failover, and only a majority can start one, so a sentinel on the minority side of a
//!   partition reports an older epoch.
//! - Sentinels that do not answer soon after the first are not awaited. So the highest epoch is
//!   remembered ([`epoch_guard`]), and an older one is not accepted while the sentinel that
//!   reported it is late.
//!
//! # Replaced masters
//!
//! A replaced master may be alive: it was paused and resumes, or the failover was requested. It
//! accepts writes until it is reconfigured, which happens eight seconds after its successor starts
//! to accept them, and these writes are discarded. Therefore:
//!
//! - No connection is made to a master during its failover, as reported by the sentinel that leads
//!   it.
//! - Connections end when sentinels announce that a successor is about to be promoted or was
//!   promoted ([`SentinelTarget::handle_failover_message`]). An announcement may be lost.
//! - A connection that was silent for half of `down-after-milliseconds` is not used again
//!   ([`SentinelTarget::max_silence`]). A server that was paused long enough to be replaced is thus
//!   looked up again, even if the announcement was lost.

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
    ConnectError, ConnectionSettings, MessageStream, OpenedConnection, redis_tls_settings,
    redis_tls_settings::RedisTlsSettings,
    single_server::SingleServer,
    store_url::{HostPort, LoginCredentials, StoreUrl},
};
use crate::clock::ceil_millis;

/// Longest wait for the other sentinels after the first answer.
const STRAGGLER_GRACE: Duration = Duration::from_millis(100);

/// Channels on which sentinels announce the promotion of a successor, and its completion.
const FAILOVER_CHANNELS: [&str; 2] = ["+failover-state-send-slaveof-noone", "+switch-master"];

#[derive(Clone)]
pub(in super::super) struct SentinelTarget(Arc<SentinelGroup>);

struct SentinelGroup {
    sentinels: Vec<SentinelServer>,
    master_name: String,
    /// Settings for all servers, whichever is the master.
    url: StoreUrl,
    tls: RedisTlsSettings,
    straggler_grace: Duration,
    /// `down-after-milliseconds`: silence after which sentinels consider the master down. 0 until a
    /// sentinel reports it.
    down_after_ms: AtomicU64,
    /// Open connections: their master, and the flag that marks each as dead.
    connections: Mutex<Vec<(HostPort, Weak<AtomicBool>)>>,
    epoch_guard: Mutex<EpochGuard>,
    /// Number of failover announcements received.
    failovers_announced: AtomicU64,
}

/// One of the sentinels.
struct SentinelServer {
    server: SingleServer,
    /// Taken out while in use, so that a cancelled query leaves no connection that may be dead.
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
            // Invalid settings are reported at construction.
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
        // From here on, the connection is ended when this server ceases to be the master.
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

    /// Returns how long a connection may be silent and still be used: half of the minimum time of a
    /// failover.
    pub(super) fn max_silence(&self) -> Option<Duration> {
        let down_after = self.0.down_after_ms.load(Ordering::Relaxed);
        (down_after > 0).then(|| Duration::from_millis(down_after) / 2)
    }

    pub(in super::super) fn sentinel_count(&self) -> usize {
        self.0.sentinels.len()
    }

    /// Subscribes to the failover announcements of one sentinel.
    pub(in super::super) async fn subscribe_to_failovers(
        &self,
        number: usize,
    ) -> Result<MessageStream, ConnectError> {
        let sentinel = self.0.sentinels.get(number).ok_or(ConnectError::Unavailable)?;
        sentinel.server.subscribe(&FAILOVER_CHANNELS.map(str::to_owned)).await
    }

    /// Ends connections to a master that was replaced or is about to be.
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
            // `slave <name> <address> <port> @ <master name> <master address> <master port>`
            ("+failover-state-send-slaveof-noone", [.., name, _, _])
                if *name == self.0.master_name =>
            {
                self.0.failovers_announced.fetch_add(1, Ordering::AcqRel);
                self.0.disconnect_all_but(None);
            }
            _ => {}
        }
    }

    /// Queries the sentinels, and handles a failover that was announced while no subscription
    /// existed.
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
                    away = Some(failure);
                }
                Some(Err(failure)) => wrong = Some(failure),
                None => break,
            }
        }
        // An unavailable sentinel might know the name. So its failure takes precedence over a
        // configuration error, such as a name that the others do not know.
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
            // An idle connection may be broken, for example after a restart of the sentinel. Its
            // failure says nothing about the sentinel, so a new connection is tried.
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

    /// Sends the query on a connection, and returns the replies with the connection.
    async fn query_over(&self, mut connection: MultiplexedConnection) -> SentinelReply {
        let mut pipe = redis::pipe();
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master_name);
        pipe.cmd("SENTINEL").arg("MASTER").arg(&self.master_name);
        connection.send_packed_commands(&pipe, 0, 2).await.map(|answers| (answers, connection))
    }

    /// Parses the replies. A name that the sentinels do not know is a configuration error; a master
    /// that is down is an outage.
    fn parse_replies(&self, address: Value, facts: Value) -> Result<SentinelReport, ConnectError> {
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
            Ok(Some((host, port))) => Ok(SentinelReport::new(HostPort { host, port }, facts)),
            Ok(None) => config("the sentinels know no master of this name"),
            Err(_) => Err(ConnectError::Unavailable),
        }
    }
}
