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
mod query_sentinels;
mod sentinel_reports;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::{Msg, aio::MultiplexedConnection};

use self::epoch_guard::EpochGuard;
use super::{
    ConnectError, MessageStream, OpenedConnection, TimeoutAndDisconnectFlag, redis_tls_settings,
    redis_tls_settings::RedisTlsSettings,
    single_server::SingleServer,
    store_url::{HostPort, LoginCredentials, StoreUrl},
};

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
    /// Open connections to masters.
    connections: Mutex<Vec<MasterConnection>>,
    epoch_guard: Mutex<EpochGuard>,
    /// Number of failover announcements received.
    failovers_announced: AtomicU64,
}

/// Open connection to a master.
struct MasterConnection {
    master: HostPort,
    /// Flag that marks the connection as dead.
    disconnected: Weak<AtomicBool>,
}

/// One of the sentinels.
struct SentinelServer {
    server: SingleServer,
    /// Taken out while in use, so that a cancelled query leaves no connection that may be dead.
    idle_connection: Mutex<Option<MultiplexedConnection>>,
}

impl SentinelTarget {
    pub(super) fn new(
        nodes: &[HostPort],
        master: String,
        url: &StoreUrl,
        tls_settings: &RedisTlsSettings,
        call_timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let sentinel_url = StoreUrl {
            credentials: url.sentinel_credentials.clone(),
            database: None,
            ..url.clone()
        };
        let sentinel = |node| {
            // Invalid settings are reported at construction.
            let server = SingleServer::new_sentinel(
                redis_tls_settings::connection_addr(node, url.tls),
                &sentinel_url,
                tls_settings,
            )?;
            Ok(SentinelServer { server, idle_connection: Mutex::new(None) })
        };
        Ok(Self(Arc::new(SentinelGroup {
            sentinels: nodes.iter().map(sentinel).collect::<Result<_, ConnectError>>()?,
            master_name: master,
            url: StoreUrl { sentinel_credentials: LoginCredentials::default(), ..url.clone() },
            tls: tls_settings.clone(),
            straggler_grace: (call_timeout / 4).min(STRAGGLER_GRACE),
            down_after_ms: AtomicU64::new(0),
            connections: Mutex::default(),
            epoch_guard: Mutex::default(),
            failovers_announced: AtomicU64::new(0),
        })))
    }

    pub(super) async fn open(
        &self,
        settings: &TimeoutAndDisconnectFlag,
    ) -> Result<OpenedConnection, ConnectError> {
        let announced_before = self.0.failovers_announced.load(Ordering::Acquire);
        let master = self.current_master().await?;
        // From here on, the connection is ended when this server ceases to be the master.
        self.0.track_connection(&master, &settings.disconnected);
        if self.0.failovers_announced.load(Ordering::Acquire) != announced_before {
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
        sentinel_index: usize,
    ) -> Result<MessageStream, ConnectError> {
        let sentinel = self.0.sentinels.get(sentinel_index).ok_or(ConnectError::Unavailable)?;
        sentinel.server.subscribe(&FAILOVER_CHANNELS.map(str::to_owned)).await
    }

    /// Ends connections to a master that was replaced or is about to be.
    pub(in super::super) fn handle_failover_message(&self, message: &Msg) {
        let Ok(text) = std::str::from_utf8(message.get_payload_bytes()) else { return };
        let parts: Vec<&str> = text.split(' ').collect();
        match (message.get_channel_name(), parts.as_slice()) {
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
            Ok(reports) if reports.is_failing_over() => {
                self.0.failovers_announced.fetch_add(1, Ordering::AcqRel);
                self.0.disconnect_all_but(None);
            }
            Ok(reports) => {
                if let Some(master) = reports.into_master() {
                    self.0.disconnect_all_but(Some(&master));
                }
            }
            Err(_) => {}
        }
    }

    async fn current_master(&self) -> Result<HostPort, ConnectError> {
        self.query_sentinels().await?.into_master().ok_or(ConnectError::Unavailable)
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

    fn track_connection(&self, master: &HostPort, disconnected: &Arc<AtomicBool>) {
        let mut connections = self.connections.lock();
        connections.retain(|tracked| tracked.disconnected.strong_count() > 0);
        let (master, disconnected) = (master.clone(), Arc::downgrade(disconnected));
        connections.push(MasterConnection { master, disconnected });
    }

    fn disconnect_all_but(&self, master: Option<&HostPort>) {
        let connections = self.connections.lock();
        let outdated = connections.iter().filter(|tracked| master != Some(&tracked.master));
        for disconnected in outdated.filter_map(|tracked| tracked.disconnected.upgrade()) {
            disconnected.store(true, Ordering::Release);
        }
    }
}
