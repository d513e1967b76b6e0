//! Connection factory: opens a connection and checks the server at its end.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, timeout},
};

use super::{TrackedConnection, liveness::Liveness, namespace_layout};
use crate::{
    error::{Error, ErrorKind},
    store::{
        key_names::{COMMON_SHARD, KeyNames},
        redis::{
            acl, fence_recovery,
            home_runtime::run_on_home_runtime,
            jitter::with_jitter,
            node_lanes::ClusterNode,
            server_info::ServerInfo,
            server_tracker::{DataIdentity, ServerChange, ServerTracker},
            target::{
                ConnectError, ConnectionSettings, ConnectionTarget, OpenedConnection,
                RedisConnection,
            },
        },
    },
};

/// Time for which a configuration error is repeated without another attempt: each attempt is a
/// login, which the server may count. Jitter is added.
const CONFIG_ERROR_TTL: Duration = Duration::from_millis(500);

/// Failures of connection attempts, and a notification of the callers that wait.
#[derive(Default)]
pub(super) struct ConnectFailures {
    /// Last failure; for a configuration error, also the time of the next attempt.
    last: Mutex<Option<(ConnectError, Option<Instant>)>>,
    pub(super) failure_notify: Notify,
}

impl ConnectFailures {
    fn record(&self, failure: ConnectError) -> Error {
        let is_mistake = matches!(failure, ConnectError::Config(_));
        let again = is_mistake.then(|| Instant::now() + with_jitter(CONFIG_ERROR_TTL));
        *self.last.lock() = Some((failure.clone(), again));
        self.failure_notify.notify_waiters();
        failure.into_error()
    }

    /// Forgets the failure after a successful attempt.
    fn clear(&self) {
        *self.last.lock() = None;
    }

    pub(super) fn last_error(&self) -> Error {
        self.last
            .lock()
            .clone()
            .map_or(ConnectError::Unavailable, |(failure, _)| failure)
            .into_error()
    }

    /// Returns the last failure if the server answered and refused the connection.
    pub(super) fn last_refusal(&self) -> Option<Error> {
        let last = self.last.lock().clone();
        last.filter(|(failure, _)| matches!(failure, ConnectError::Refused(_)))
            .map(|(why, _)| why.into_error())
    }

    /// Returns a configuration error that is younger than `CONFIG_ERROR_TTL`. Another attempt would
    /// most likely fail too, since such an error is fixed by hand.
    pub(super) fn config_error(&self) -> Option<Error> {
        let last = self.last.lock().clone();
        let (failure, _) = last.filter(|(_, again)| again.is_some_and(|at| Instant::now() < at))?;
        Some(failure.into_error())
    }
}

/// Connection attempt in progress, until it ends or its runtime does.
struct ConnectAttempt<'a>(&'a Mutex<Option<Instant>>);

impl<'a> ConnectAttempt<'a> {
    fn start(making: &'a Mutex<Option<Instant>>) -> Self {
        *making.lock() = Some(Instant::now());
        Self(making)
    }
}

impl Drop for ConnectAttempt<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// Makes connections, and checks that the server is usable and the namespace has this layout.
#[derive(Clone)]
pub(super) struct ConnectionFactory {
    pub(super) target: ConnectionTarget,
    pub(super) keys: KeyNames,
    pub(super) deadline: Duration,
    pub(super) failures: Arc<ConnectFailures>,
    pub(super) server_tracker: Option<Arc<ServerTracker>>,
    pub(super) node: Option<Arc<ClusterNode>>,
    /// Number of connections of all lanes that were abandoned or broke.
    pub(super) connection_resets: Arc<AtomicU64>,
    /// Start of the attempt in progress, if any, for the pool of this factory.
    pub(super) attempt_started_at: Arc<Mutex<Option<Instant>>>,
    /// Runtime that the store was created on.
    pub(super) home_runtime: Option<Handle>,
}

impl bb8::ManageConnection for ConnectionFactory {
    type Connection = TrackedConnection;
    type Error = Error;

    async fn connect(&self) -> Result<TrackedConnection, Error> {
        let _making = ConnectAttempt::start(&self.attempt_started_at);
        // The whole attempt has a timeout: one that never ends would keep its lane from making
        // another.
        let opened = timeout(self.deadline * 2, self.open_on_home_runtime()).await;
        let opened =
            opened.unwrap_or(Err(ConnectError::Unavailable)).inspect(|_| self.failures.clear());
        opened.map_err(|failure| self.failures.record(failure))
    }

    async fn is_valid(&self, socket: &mut TrackedConnection) -> Result<(), Error> {
        if socket.is_dead() {
            Err(Error::new(ErrorKind::Unavailable, "connection"))
        } else {
            Ok(())
        }
    }

    fn has_broken(&self, socket: &mut TrackedConnection) -> bool {
        socket.is_dead()
    }
}

impl ConnectionFactory {
    /// Returns a factory for the lanes to a target.
    pub(super) fn for_target(
        &self,
        target: ConnectionTarget,
        incarnation: &Arc<ServerTracker>,
        place: Option<Arc<ClusterNode>>,
    ) -> Self {
        let incarnation = Some(Arc::clone(incarnation));
        Self {
            target,
            failures: Arc::default(),
            server_tracker: incarnation,
            node: place,
            ..self.clone()
        }
    }

    async fn open_on_home_runtime(&self) -> Result<TrackedConnection, ConnectError> {
        let manager = self.clone();
        let open = async move { manager.open().await };
        match run_on_home_runtime(self.home_runtime.as_ref(), self.deadline / 4, open).await {
            Some(opened) => opened,
            None => self.open().await,
        }
    }

    pub(super) async fn open(&self) -> Result<TrackedConnection, ConnectError> {
        let settings = ConnectionSettings {
            connect_timeout: Some(self.deadline),
            ..ConnectionSettings::default()
        };
        let OpenedConnection { mut connection, endpoint: at } =
            self.target.open(COMMON_SHARD, &settings).await?;
        let facts = ServerInfo::fetch(&mut connection).await?;
        facts.check_usable(self.node.is_some())?;
        // The server has answered, so it was alive at a later moment than this.
        let alive = Instant::now();
        let mut own = connection.clone();
        // Run concurrently, to save a round trip.
        let (data, may) = tokio::join!(
            self.verify_layout(&mut connection),
            acl::check_permissions(&mut own, &self.keys)
        );
        let data = data?;
        may?;
        let run_id = facts.run_id().filter(|_| self.server_tracker.is_some());
        if let (Some(run_id), None) = (run_id, &self.node) {
            fence_recovery::advance_all_shards(&mut connection, &self.keys, run_id).await?;
        }
        if let Some(place) = &self.node
            && !place.owns_shards().await
        {
            return Err(ConnectError::Unavailable);
        }
        if let Some(incarnation) = &self.server_tracker {
            let dead = Arc::downgrade(&settings.disconnected);
            let place = self.node.as_ref().map(|place| place.name()).unwrap_or_default();
            let node = self.node.as_ref().map(|place| &place.address);
            let id = facts.identity(at.as_ref().or(node));
            if matches!(
                incarnation.record_connection(&place, id, data, dead),
                ServerChange::FirstContact | ServerChange::Replaced
            ) {
                facts.log_concerns(&mut connection).await;
            }
        }
        let (place, timeouts) = (self.node.clone(), Arc::default());
        let life = self.max_silence().map(|patience| Arc::new(Liveness::new(alive, patience)));
        let (dead, silences) = (settings.disconnected, Arc::clone(&self.connection_resets));
        let run_id = run_id.filter(|_| place.is_some()).map(Arc::from);
        Ok(TrackedConnection {
            connection,
            node: place,
            run_id,
            dead,
            consecutive_timeouts: timeouts,
            liveness: life,
            checked_out_at: alive,
            connection_resets: silences,
        })
    }

    /// Returns how long a connection may be silent and still be used; `None` means any time.
    pub(super) fn max_silence(&self) -> Option<Duration> {
        match &self.node {
            Some(place) => Some(place.cluster.max_silence()),
            None => self.target.max_silence(),
        }
    }

    /// Returns an error unless the namespace has the layout of this version. Returns the identity
    /// of the data, unless another node has it. (A probe does not create it; that is left to the
    /// lanes.)
    async fn verify_layout(
        &self,
        connection: &mut RedisConnection,
    ) -> Result<Option<DataIdentity>, ConnectError> {
        let writes = self.server_tracker.is_some();
        let data =
            namespace_layout::check_layout(connection, &self.keys, self.node.is_some(), writes)
                .await?;
        let (Some(incarnation), Some(place)) = (&self.server_tracker, &self.node) else {
            return Ok(data);
        };
        // A node without the key `meta` cannot report the layout. Until the layout is verified, the
        // node with that key is asked.
        if data.is_none() && !incarnation.is_layout_verified() {
            let settings = ConnectionSettings {
                connect_timeout: Some(self.deadline),
                ..ConnectionSettings::default()
            };
            let mut common = place.cluster.open(COMMON_SHARD, &settings).await?.connection;
            let common =
                namespace_layout::check_layout(&mut common, &self.keys, false, writes).await?;
            // Delegation headers are signed with the identity before a lane of that node connects.
            if let Some(DataIdentity(Some(space))) = common {
                incarnation.learn_identity(&space);
            }
        }
        incarnation.mark_layout_verified();
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn config_error_is_cached_briefly_and_outage_is_not() {
        let failures = ConnectFailures::default();
        assert!(failures.config_error().is_none());
        failures.record(ConnectError::Config("another password".to_owned()));
        assert!(failures.config_error().is_some_and(|error| error.kind() == ErrorKind::Config));
        tokio::time::advance(CONFIG_ERROR_TTL * 5 / 4).await;
        assert!(failures.config_error().is_none(), "it may be mended");
        assert_eq!(failures.last_error().kind(), ErrorKind::Config, "if it is not");
        failures.record(ConnectError::Config("another password".to_owned()));
        failures.record(ConnectError::Unavailable);
        assert!(failures.config_error().is_none());
        failures.record(ConnectError::Config("another password".to_owned()));
        failures.clear();
        assert!(failures.config_error().is_none());
    }
}
