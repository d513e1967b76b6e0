//! A proxy between one process and its server, that knows which script a call is about.
//!
//! With it a process can be killed at the boundaries of a script: a call is seen here before the server
//! has it, and its reply before the process has it. For the store a process that is killed at these two
//! moments is the same as one that dies just before it sends, or just after it has read; and nothing in the
//! library has to know of it.

mod link;
mod names;
mod resp;
mod rule;

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

pub(crate) use self::names::is_known;
pub use self::rule::{Moment, Rule, Struck};
use self::{link::Link, names::Names};
use crate::redis::Server;

/// Forwards to a server, but for what it is told to lose. A connection whose call met a rule ends there.
#[derive(Debug, Clone)]
pub struct Proxy {
    port: u16,
    namespace: String,
    rules: Arc<Mutex<Vec<Rule>>>,
    names: Names,
    deaf: Arc<watch::Sender<bool>>,
    lost: Arc<AtomicU64>,
    unanswered: Arc<AtomicU64>,
    heard: Arc<AtomicU64>,
    weather: Arc<watch::Sender<Weather>>,
    /// How many connections there are that calls are made on, by what was [silent](Weather::silent) when they were made.
    links: Arc<watch::Sender<BTreeMap<u64, usize>>>,
    /// The server's port.
    server: Arc<AtomicU16>,
}

/// What becomes of the bytes of all connections.
#[derive(Debug, Clone, Copy, Default)]
struct Weather {
    /// Nothing passes either way, and no connection ends. What is on its way arrives afterwards.
    hole: bool,
    /// Everything comes so much later.
    delay: Duration,
    /// Connections made before this one of their numbers have ended without a word to the client.
    silent: u64,
    /// Of those, connections made before this one of their numbers end with one as well.
    silent_no_more: u64,
    /// Connections made before this one of their numbers have ended with a word to the client.
    cut: u64,
}

impl Proxy {
    /// A proxy of its own for a process that uses this namespace of the server.
    ///
    /// # Panics
    ///
    /// If there is no port.
    pub async fn to(server: &Server, namespace: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let proxy = Self {
            port,
            namespace: namespace.to_owned(),
            rules: Arc::default(),
            names: Names::default(),
            deaf: Arc::default(),
            lost: Arc::default(),
            unanswered: Arc::default(),
            heard: Arc::default(),
            weather: Arc::default(),
            links: Arc::default(),
            server: Arc::new(server.port().into()),
        };
        let own = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let own = own.clone();
                tokio::spawn(async move {
                    let mut weather = own.weather.subscribe();
                    if weather.wait_for(|weather| !weather.hole).await.is_err() {
                        return;
                    }
                    let server = own.server.load(Ordering::Relaxed);
                    // A server that is away: the client sees that its connection ends.
                    if let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await {
                        let _ = server.set_nodelay(true);
                        let _ = client.set_nodelay(true);
                        Link::new(&own).forward(client, server).await;
                    }
                });
            }
        });
        proxy
    }

    /// The URL for the process.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/?ns={}", self.port, self.namespace)
    }

    /// Has something done when a call meets this rule; it meets it once.
    ///
    /// # Panics
    ///
    /// If there is no such script.
    pub fn strike(&self, rule: Rule) -> Struck {
        assert!(is_known(rule.script()), "no script {}", rule.script());
        let struck = rule.struck();
        self.rules.lock().push(rule);
        struck
    }

    /// Rules that nothing has met are no more.
    pub fn forget_rules(&self) {
        self.rules.lock().clear();
    }

    /// Messages to subscribers are lost from now on, or no longer.
    pub fn lose_messages(&self, lose: bool) {
        self.deaf.send_replace(lose);
    }

    /// A cable that is pulled, or one that is in its place again: nothing passes, and nobody is told. What is on
    /// its way arrives afterwards.
    pub fn stall(&self, stall: bool) {
        self.weather.send_modify(|weather| weather.hole = stall);
    }

    /// Everything comes so much later from now on, either way.
    pub fn delay(&self, delay: Duration) {
        self.weather.send_modify(|weather| weather.delay = delay);
    }

    /// The connections of this moment are half open from now on: whatever is sent on them is gone, and nobody is
    /// told. New ones work.
    pub fn half_open(&self) {
        self.weather.send_modify(|weather| weather.silent += 1);
    }

    /// Resolves when all connections that are half open were left by their clients; but for subscribers, who call nobody.
    pub async fn left(&self) {
        let silent = self.weather.borrow().silent;
        let mut links = self.links.subscribe();
        // The sender is this proxy's.
        let _ = links.wait_for(|links| links.range(..silent).next().is_none()).await;
    }

    /// Connections that are half open end.
    pub fn end_half_open(&self) {
        self.weather.send_modify(|weather| weather.silent_no_more = weather.silent);
    }

    /// From now on it leads to this server, as the name of a master does after a failover.
    pub fn turn_to(&self, server: &Server) {
        self.server.store(server.port(), Ordering::Relaxed);
        self.cut();
    }

    /// The connections of this moment end.
    pub fn cut(&self) {
        self.weather.send_modify(|weather| weather.cut += 1);
    }

    /// How many messages have been lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Calls that the server has run for a [`Rule`], which kept the reply.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// How many messages have arrived.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// The script that this command calls, if it was sent whole through here before.
    pub(crate) fn script(&self, words: &[&[u8]]) -> Option<String> {
        self.names.of(words).ok().flatten()
    }

    /// The hash of the script whose text the server's log of slow commands tells like this, if it was sent through here.
    pub(crate) fn hash_of(&self, told: &[u8]) -> Option<String> {
        self.names.hash_of(told)
    }

    /// The rule that this call meets, which is then used up, unless it stays.
    fn met(&self, scripts: &[String], words: &[&[u8]]) -> Option<Rule> {
        let mut rules = self.rules.lock();
        let at = rules.iter_mut().position(|rule| rule.meets(scripts, words))?;
        if rules[at].stays() {
            return Some(rules[at].clone());
        }
        Some(rules.swap_remove(at))
    }

    /// The script had not run.
    fn not_yet(&self, rule: Rule) {
        if !rule.stays() {
            self.rules.lock().push(rule);
        }
    }
}

/// A call that somebody made, to be made again: word by word.
#[must_use]
pub fn words(call: &[u8]) -> Vec<Vec<u8>> {
    resp::words(call).into_iter().map(<[u8]>::to_vec).collect()
}

/// The bytes of the first call among these, taken from them; `None` if it is not whole yet.
pub fn take_call(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    resp::length(bytes).map(|length| bytes.drain(..length).collect())
}
