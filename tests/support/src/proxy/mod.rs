//! `FaultProxy`: proxy between one process and its server that recognizes the script of each call.
//!
//! It can kill a process at the boundaries of a script: it has a call before the server does, and
//! the reply before the process does. To the store, a kill at these points equals a death just
//! before the send or just after the receive. The library needs no hooks for it.

mod fault_rule;
mod proxied_connection;
mod resp;
mod script_names;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub use self::fault_rule::{FaultPoint, FaultRule, RuleMatch};
pub(crate) use self::script_names::script_exists;
use self::{proxied_connection::ProxiedConnection, script_names::ScriptNames};
use crate::redis_server::RedisServer;

/// Proxy that forwards calls and replies, except those that its rules lose. It closes a connection
/// whose call matches a rule.
#[derive(Debug, Clone)]
pub struct FaultProxy {
    port: u16,
    namespace: String,
    rules: Arc<Mutex<Vec<FaultRule>>>,
    script_names: ScriptNames,
    drops_messages: Arc<watch::Sender<bool>>,
    dropped_messages: Arc<AtomicU64>,
    unanswered_calls: Arc<AtomicU64>,
    delivered_messages: Arc<AtomicU64>,
    conditions: Arc<watch::Sender<NetworkConditions>>,
    /// Number of connections with calls, by the [`half_open_epoch`](NetworkConditions) at their
    /// start.
    connection_counts: Arc<watch::Sender<BTreeMap<u64, usize>>>,
    /// The server's port.
    server_port: Arc<AtomicU16>,
}

/// Handling of the bytes of all connections.
#[derive(Debug, Clone, Copy, Default)]
struct NetworkConditions {
    /// No byte passes in either direction, and no connection closes. Bytes in flight arrive later.
    is_stalled: bool,
    /// Delay of all bytes.
    delay: Duration,
    /// Connections of earlier epochs are half open: their server side is closed without a notice.
    half_open_epoch: u64,
    /// Half-open connections of earlier epochs are closed.
    closed_half_open_epoch: u64,
    /// Connections of earlier epochs are cut: both sides are closed.
    cut_epoch: u64,
}

impl FaultProxy {
    /// Starts a proxy for a process that uses this namespace of the server.
    ///
    /// # Panics
    ///
    /// If no port is free.
    pub async fn start(server: &RedisServer, namespace: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let proxy = Self {
            port,
            namespace: namespace.to_owned(),
            rules: Arc::default(),
            script_names: ScriptNames::default(),
            drops_messages: Arc::default(),
            dropped_messages: Arc::default(),
            unanswered_calls: Arc::default(),
            delivered_messages: Arc::default(),
            conditions: Arc::default(),
            connection_counts: Arc::default(),
            server_port: Arc::new(server.port().into()),
        };
        let task_proxy = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let task_proxy = task_proxy.clone();
                tokio::spawn(async move {
                    let mut conditions = task_proxy.conditions.subscribe();
                    if conditions.wait_for(|conditions| !conditions.is_stalled).await.is_err() {
                        return;
                    }
                    let server = task_proxy.server_port.load(Ordering::Relaxed);
                    // If the server is unavailable, the client's connection is closed.
                    if let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await {
                        let _ = server.set_nodelay(true);
                        let _ = client.set_nodelay(true);
                        ProxiedConnection::new(&task_proxy).forward(client, server).await;
                    }
                });
            }
        });
        proxy
    }

    /// Returns the URL for the process.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/?ns={}", self.port, self.namespace)
    }

    /// Adds a rule, which acts at one matching call.
    ///
    /// # Panics
    ///
    /// If there is no such script.
    pub fn add_rule(&self, rule: FaultRule) -> RuleMatch {
        assert!(script_exists(rule.script()), "no script {}", rule.script());
        let rule_match = rule.subscribe();
        self.rules.lock().push(rule);
        rule_match
    }

    /// Removes all rules without a match.
    pub fn clear_rules(&self) {
        self.rules.lock().clear();
    }

    /// Starts or stops the loss of messages to subscribers.
    pub fn set_drop_messages(&self, drops: bool) {
        self.drops_messages.send_replace(drops);
    }

    /// Cuts or restores the network: no byte passes, and no side is notified. Bytes in flight
    /// arrive afterwards.
    pub fn set_stalled(&self, is_stalled: bool) {
        self.conditions.send_modify(|conditions| conditions.is_stalled = is_stalled);
    }

    /// Delays all bytes in both directions from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.conditions.send_modify(|conditions| conditions.delay = delay);
    }

    /// Makes the current connections half open: bytes that are sent on them are lost without a
    /// notification. New connections work.
    pub fn half_open_connections(&self) {
        self.conditions.send_modify(|conditions| conditions.half_open_epoch += 1);
    }

    /// Resolves when clients have closed all half-open connections. Subscriptions are ignored,
    /// because they carry no calls.
    pub async fn wait_until_half_open_abandoned(&self) {
        let half_open_epoch = self.conditions.borrow().half_open_epoch;
        let mut counts = self.connection_counts.subscribe();
        // The sender belongs to this proxy.
        let _ = counts.wait_for(|counts| counts.range(..half_open_epoch).next().is_none()).await;
    }

    /// Closes the half-open connections.
    pub fn close_half_open(&self) {
        self.conditions.send_modify(|conditions| {
            conditions.closed_half_open_epoch = conditions.half_open_epoch;
        });
    }

    /// Forwards to this server from now on, like the name of a master after a failover.
    pub fn redirect_to(&self, server: &RedisServer) {
        self.server_port.store(server.port(), Ordering::Relaxed);
        self.cut_connections();
    }

    /// Closes the current connections.
    pub fn cut_connections(&self) {
        self.conditions.send_modify(|conditions| conditions.cut_epoch += 1);
    }

    /// Returns the number of lost messages.
    #[must_use]
    pub fn dropped_messages(&self) -> u64 {
        self.dropped_messages.load(Ordering::Relaxed)
    }

    /// Returns the number of calls that the server ran and whose reply a [`FaultRule`] withheld.
    #[must_use]
    pub fn unanswered_calls(&self) -> u64 {
        self.unanswered_calls.load(Ordering::Relaxed)
    }

    /// Returns the number of delivered messages.
    #[must_use]
    pub fn delivered_messages(&self) -> u64 {
        self.delivered_messages.load(Ordering::Relaxed)
    }

    /// Returns the script that this command calls, if its text has passed the proxy.
    pub(crate) fn script_name(&self, arguments: &[&[u8]]) -> Option<String> {
        self.script_names.script_name(arguments).ok().flatten()
    }

    /// Returns the hash of a script from its truncated text in the slow log, if it has passed the
    /// proxy.
    pub(crate) fn script_hash(&self, truncated_text: &[u8]) -> Option<String> {
        self.script_names.script_hash(truncated_text)
    }

    /// Returns the rule that this call matches, and removes it unless it is permanent.
    fn take_matching_rule(&self, scripts: &[String], arguments: &[&[u8]]) -> Option<FaultRule> {
        let mut rules = self.rules.lock();
        let index = rules.iter_mut().position(|rule| rule.matches(scripts, arguments))?;
        if rules[index].is_permanent() {
            return Some(rules[index].clone());
        }
        Some(rules.swap_remove(index))
    }

    /// Restores a rule whose call did not run.
    fn restore_rule(&self, rule: FaultRule) {
        if !rule.is_permanent() {
            self.rules.lock().push(rule);
        }
    }
}

/// Encodes a recorded call so that it can be sent again.
#[must_use]
pub fn command_args(call: &[u8]) -> Vec<Vec<u8>> {
    resp::command_args(call).into_iter().map(<[u8]>::to_vec).collect()
}

/// Takes the first call from the bytes. Returns `None` if it is incomplete.
pub fn take_command(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    resp::value_length(bytes).map(|length| bytes.drain(..length).collect())
}
