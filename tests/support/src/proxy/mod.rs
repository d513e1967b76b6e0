//! `FaultProxy`: a proxy between one process and its server, which recognizes the script of each call.
//!
//! With it a process can be killed at the boundaries of a script: the proxy sees a call before the
//! server gets it, and the reply before the process gets it. For the store a process that is killed at
//! these two moments is the same as one that dies just before it sends, or just after it has read. The
//! library needs no hooks for it.

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

/// Forwards to a server, apart from the calls and replies that its rules lose. A connection whose call meets a rule is closed.
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
    /// How many connections there are that calls are made on, by what was [half open](NetworkConditions) when they were made.
    connection_counts: Arc<watch::Sender<BTreeMap<u64, usize>>>,
    /// The server's port.
    server_port: Arc<AtomicU16>,
}

/// Handling of the bytes of all connections.
#[derive(Debug, Clone, Copy, Default)]
struct NetworkConditions {
    /// No byte passes in either direction, and no connection ends. Bytes in flight arrive afterwards.
    is_stalled: bool,
    /// Delay of all bytes.
    delay: Duration,
    /// Connections made before this one of their numbers have ended without a word to the client.
    half_open_epoch: u64,
    /// Of those, connections made before this one of their numbers end with one as well.
    closed_half_open_epoch: u64,
    /// Connections made before this one of their numbers have ended with a word to the client.
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
        let own = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let own = own.clone();
                tokio::spawn(async move {
                    let mut weather = own.conditions.subscribe();
                    if weather.wait_for(|weather| !weather.is_stalled).await.is_err() {
                        return;
                    }
                    let server = own.server_port.load(Ordering::Relaxed);
                    // A server that is away: the client sees that its connection ends.
                    if let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await {
                        let _ = server.set_nodelay(true);
                        let _ = client.set_nodelay(true);
                        ProxiedConnection::new(&own).forward(client, server).await;
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
        let struck = rule.subscribe();
        self.rules.lock().push(rule);
        struck
    }

    /// Removes all rules that no call has met.
    pub fn clear_rules(&self) {
        self.rules.lock().clear();
    }

    /// Starts or stops the loss of messages to subscribers.
    pub fn set_drop_messages(&self, lose: bool) {
        self.drops_messages.send_replace(lose);
    }

    /// Cuts or restores the network: no byte passes, and no side is notified. Bytes in flight
    /// arrive afterwards.
    pub fn set_stalled(&self, stall: bool) {
        self.conditions.send_modify(|weather| weather.is_stalled = stall);
    }

    /// Delays all bytes in both directions from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.conditions.send_modify(|weather| weather.delay = delay);
    }

    /// Makes the current connections half open: bytes that are sent on them are lost without a
    /// notification. New connections work.
    pub fn half_open_connections(&self) {
        self.conditions.send_modify(|weather| weather.half_open_epoch += 1);
    }

    /// Resolves when all connections that are half open were left by their clients; but for subscribers, who call nobody.
    pub async fn wait_until_half_open_abandoned(&self) {
        let silent = self.conditions.borrow().half_open_epoch;
        let mut links = self.connection_counts.subscribe();
        // The sender is this proxy's.
        let _ = links.wait_for(|links| links.range(..silent).next().is_none()).await;
    }

    /// Closes the half-open connections.
    pub fn close_half_open(&self) {
        self.conditions
            .send_modify(|weather| weather.closed_half_open_epoch = weather.half_open_epoch);
    }

    /// Forwards to this server from now on, like the name of a master after a failover.
    pub fn redirect_to(&self, server: &RedisServer) {
        self.server_port.store(server.port(), Ordering::Relaxed);
        self.cut_connections();
    }

    /// Closes the current connections.
    pub fn cut_connections(&self) {
        self.conditions.send_modify(|weather| weather.cut_epoch += 1);
    }

    /// Returns the number of lost messages.
    #[must_use]
    pub fn dropped_messages(&self) -> u64 {
        self.dropped_messages.load(Ordering::Relaxed)
    }

    /// Number of calls that the server ran, and whose reply a [`FaultRule`] withheld.
    #[must_use]
    pub fn unanswered_calls(&self) -> u64 {
        self.unanswered_calls.load(Ordering::Relaxed)
    }

    /// Returns the number of delivered messages.
    #[must_use]
    pub fn delivered_messages(&self) -> u64 {
        self.delivered_messages.load(Ordering::Relaxed)
    }

    /// The script that this command calls, if it was sent whole through here before.
    pub(crate) fn script_name(&self, words: &[&[u8]]) -> Option<String> {
        self.script_names.script_name(words).ok().flatten()
    }

    /// The hash of the script whose text the server's log of slow commands tells like this, if it was sent through here.
    pub(crate) fn script_hash(&self, told: &[u8]) -> Option<String> {
        self.script_names.script_hash(told)
    }

    /// The rule that this call meets, which is then used up, unless it stays.
    fn take_matching_rule(&self, scripts: &[String], words: &[&[u8]]) -> Option<FaultRule> {
        let mut rules = self.rules.lock();
        let at = rules.iter_mut().position(|rule| rule.matches(scripts, words))?;
        if rules[at].is_permanent() {
            return Some(rules[at].clone());
        }
        Some(rules.swap_remove(at))
    }

    /// The script had not run.
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

/// The bytes of the first call among these, taken from them; `None` if it is not whole yet.
pub fn take_command(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    resp::value_length(bytes).map(|length| bytes.drain(..length).collect())
}
