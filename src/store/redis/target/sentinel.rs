//! The master of a name, as sentinels know it at the time.
//!
//! Asked anew for each connection: a master that has been demoted refuses writes, its sockets are
//! condemned, and the next connection goes to its successor. All sentinels are asked at once. The latest
//! configuration is believed ([`named`]): its number is higher after each failover, and only a majority can
//! begin one, so on the wrong side of a partition a sentinel has an old one. Who does not answer soon after the
//! first is not waited for; so what one has told is kept ([`known`]), and an older one is not gone back to while he
//! is late.
//!
//! # A master that is replaced
//!
//! It may be alive: it stood still and wakes, or the failover was asked for. It takes writes until somebody tells it
//! otherwise, eight seconds after its successor does, and what it took is thrown away. So
//!
//! - no connection is made to a master whose failover is under way, as the sentinel that leads it tells;
//! - connections are ended when sentinels say that a successor is about to be promoted, or is there
//!   ([`Sentinels::heard`]; a hint);
//! - a connection that was silent for half the time after which sentinels take a master for gone is not used again
//!   ([`Sentinels::patience`]). So whatever stood still long enough to be replaced is asked for anew, also if no hint came.

mod known;
mod named;

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
    known::Known,
    named::{Named, Told},
};
use super::{
    Failure, Messages, One, Opened, Settings, tls,
    tls::Trust,
    url::{Address, Login, Node},
};
use crate::clock::millis;

/// How long the others may take when the first has answered, at most.
const GRACE: Duration = Duration::from_millis(100);

/// What they say when they have begun to replace a master, and when they have.
const SAID: [&str; 2] = ["+failover-state-send-slaveof-noone", "+switch-master"];

#[derive(Clone)]
pub(in super::super) struct Sentinels(Arc<Watched>);

struct Watched {
    sentinels: Vec<Sentinel>,
    master: String,
    /// How servers are talked to, whichever is the master.
    address: Address,
    trust: Trust,
    grace: Duration,
    /// After how many ms of silence sentinels take the master for gone; 0 as long as none has told.
    down_after: AtomicU64,
    /// Connections there are: to which master, and what makes them dead.
    made: Mutex<Vec<(Node, Weak<AtomicBool>)>>,
    known: Mutex<Known>,
    /// How many words there were.
    heard: AtomicU64,
}

/// One of them.
struct Sentinel {
    server: One,
    /// Taken out while in use: a question that is dropped half way leaves no connection that may be dead.
    kept: Mutex<Option<MultiplexedConnection>>,
}

type Asked = RedisResult<(Vec<Value>, MultiplexedConnection)>;

fn is_broken(asked: &Asked) -> bool {
    asked.as_ref().is_err_and(RedisError::is_io_error)
}

impl Sentinels {
    pub(super) fn new(
        nodes: &[Node],
        master: String,
        address: &Address,
        trust: &Trust,
        within: Duration,
    ) -> Result<Self, Failure> {
        let own =
            Address { login: address.sentinel_login.clone(), database: None, ..address.clone() };
        let sentinel = |node| {
            // What can't be used is told now.
            let server = One::sentinel(tls::address(node, address.tls), &own, trust)?;
            Ok(Sentinel { server, kept: Mutex::new(None) })
        };
        Ok(Self(Arc::new(Watched {
            sentinels: nodes.iter().map(sentinel).collect::<Result<_, Failure>>()?,
            master,
            address: Address { sentinel_login: Login::default(), ..address.clone() },
            trust: trust.clone(),
            grace: (within / 4).min(GRACE),
            down_after: AtomicU64::new(0),
            made: Mutex::default(),
            known: Mutex::default(),
            heard: AtomicU64::new(0),
        })))
    }

    pub(super) async fn open(&self, settings: &Settings) -> Result<Opened, Failure> {
        let before = self.0.heard.load(Ordering::Acquire);
        let master = self.master().await?;
        // From here on it is ended when that is no master any more.
        self.0.note(&master, &settings.gone);
        if self.0.heard.load(Ordering::Acquire) != before {
            return Err(Failure::Away);
        }
        let connection = self.0.server(&master)?.open(settings).await?;
        Ok(Opened { connection, at: Some((master.host, master.port)) })
    }

    pub(super) async fn subscribe(&self, channels: &[String]) -> Result<Messages, Failure> {
        self.0.server(&self.master().await?)?.subscribe(channels).await
    }

    /// How long a connection may have been silent, and still be used: half of what a failover takes at least.
    pub(super) fn patience(&self) -> Option<Duration> {
        let down_after = self.0.down_after.load(Ordering::Relaxed);
        (down_after > 0).then(|| Duration::from_millis(down_after) / 2)
    }

    /// How many there are.
    pub(in super::super) fn number(&self) -> usize {
        self.0.sentinels.len()
    }

    /// What this one says of failovers.
    pub(in super::super) async fn words(&self, number: usize) -> Result<Messages, Failure> {
        let sentinel = self.0.sentinels.get(number).ok_or(Failure::Away)?;
        sentinel.server.subscribe(&SAID.map(str::to_owned)).await
    }

    /// Ends connections to a master that is no more, or soon will not be.
    pub(in super::super) fn heard(&self, message: &Msg) {
        let Ok(text) = std::str::from_utf8(message.get_payload_bytes()) else { return };
        let words: Vec<&str> = text.split(' ').collect();
        match (message.get_channel_name(), words.as_slice()) {
            // `<name> <old address> <old port> <new address> <new port>`
            ("+switch-master", [name, _, _, host, port]) if *name == self.0.master => {
                if let Ok(port) = port.parse() {
                    self.0.heard.fetch_add(1, Ordering::AcqRel);
                    self.0.leave_all_but(Some(&Node { host: (*host).to_owned(), port }));
                }
            }
            // `slave <name> <address> <port> @ <master's name> <its address> <its port>`
            ("+failover-state-send-slaveof-noone", [.., name, _, _]) if *name == self.0.master => {
                self.0.heard.fetch_add(1, Ordering::AcqRel);
                self.0.leave_all_but(None);
            }
            _ => {}
        }
    }

    /// As if it had been heard: what was said while nobody listened.
    pub(in super::super) async fn look(&self) {
        match self.named().await {
            Ok(named) if named.is_replaced() => {
                self.0.heard.fetch_add(1, Ordering::AcqRel);
                self.0.leave_all_but(None);
            }
            Ok(named) => {
                if let Some(master) = named.master() {
                    self.0.leave_all_but(Some(&master));
                }
            }
            Err(_) => {}
        }
    }

    async fn master(&self) -> Result<Node, Failure> {
        self.named().await?.master().ok_or(Failure::Away)
    }

    async fn named(&self) -> Result<Named, Failure> {
        let asked = self.0.sentinels.iter().map(|sentinel| self.0.ask(sentinel));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut named, mut wrong, mut away) = (Named::default(), None, None);
        let mut until = None;
        loop {
            let answer = match until {
                None => asked.next().await,
                Some(until) => timeout_at(until, asked.next()).await.unwrap_or(None),
            };
            match answer {
                Some(Ok(told)) => {
                    until.get_or_insert_with(|| Instant::now() + self.0.grace);
                    if let Some(down_after) = told.down_after {
                        self.0.down_after.store(millis(down_after), Ordering::Relaxed);
                    }
                    named.add(told);
                }
                Some(Err(failure @ (Failure::Away | Failure::Refused(_)))) => away = Some(failure),
                Some(Err(failure)) => wrong = Some(failure),
                None => break,
            }
        }
        // One that is away might know: what the others do not know is no mistake then.
        let why = away.or(wrong).unwrap_or(Failure::Away);
        if named.is_empty() {
            return Err(why);
        }
        let outdated = self.0.known.lock().outdates(&named, self.number(), Instant::now());
        if outdated { Err(Failure::Away) } else { Ok(named) }
    }
}

impl Watched {
    fn server(&self, node: &Node) -> Result<One, Failure> {
        One::new(tls::address(node, self.address.tls), &self.address, &self.trust)
    }

    fn note(&self, master: &Node, gone: &Arc<AtomicBool>) {
        let mut made = self.made.lock();
        made.retain(|(_, dead)| dead.strong_count() > 0);
        made.push((master.clone(), Arc::downgrade(gone)));
    }

    fn leave_all_but(&self, master: Option<&Node>) {
        let made = self.made.lock();
        let others = made.iter().filter(|(node, _)| master != Some(node));
        for dead in others.filter_map(|(_, dead)| dead.upgrade()) {
            dead.store(true, Ordering::Release);
        }
    }

    async fn ask(&self, sentinel: &Sentinel) -> Result<Told, Failure> {
        let kept = sentinel.kept.lock().take();
        let asked = match kept {
            // It may have broken long ago, as where the sentinel was restarted: that is no word of the sentinel.
            Some(kept) => Some(self.ask_by(kept).await).filter(|asked| !is_broken(asked)),
            None => None,
        };
        let asked = match asked {
            Some(asked) => asked,
            None => self.ask_by(sentinel.server.open_plain().await?).await,
        };
        let (answers, connection) = asked.map_err(|error| Failure::of(&error))?;
        *sentinel.kept.lock() = Some(connection);
        let mut answers = answers.into_iter();
        let (address, facts) = (answers.next(), answers.next());
        self.read(address.unwrap_or(Value::Nil), facts.unwrap_or(Value::Nil))
    }

    /// What is answered by this connection, and the connection.
    async fn ask_by(&self, mut connection: MultiplexedConnection) -> Asked {
        let mut pipe = redis::pipe();
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        pipe.cmd("SENTINEL").arg("MASTER").arg(&self.master);
        connection.send_packed_commands(&pipe, 0, 2).await.map(|answers| (answers, connection))
    }

    /// A name that sentinels do not know is a mistake; a master that is down is an outage.
    fn read(&self, address: Value, facts: Value) -> Result<Told, Failure> {
        let config = |sentence: &str| Err(Failure::Config(sentence.to_owned()));
        let address = match address {
            Value::ServerError(error)
                if error.details().is_some_and(|text| text.contains("unknown command")) =>
            {
                return config("one of the sentinels named is no sentinel");
            }
            Value::ServerError(error) => return Err(Failure::of(&error.into())),
            address => redis::from_redis_value::<Option<(String, u16)>>(address),
        };
        match address {
            Ok(Some((host, port))) => Ok(Told::new(Node { host, port }, facts)),
            Ok(None) => config("the sentinels know no master of this name"),
            Err(_) => Err(Failure::Away),
        }
    }
}
