//! One connection through the proxy.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, atomic::Ordering},
};

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

use super::{
    Proxy, Weather, names, resp,
    rule::{Moment, Rule},
};

/// An answer that the client waits for, in their order.
enum Wanted {
    /// Of the server, to a call that met a rule or not.
    Reply(Option<(Rule, BytesMut)>),
    /// That nobody knows this hash: the script has to be sent whole, so that it has a name here.
    Unknown,
}

const UNKNOWN: &[u8] = b"-NOSCRIPT No matching script.\r\n";

pub(super) struct Link {
    proxy: Proxy,
    wanted: VecDeque<Wanted>,
    /// For as long as calls come: what comes of a subscriber is messages, not answers.
    calls: Option<Counted>,
    weather: watch::Receiver<Weather>,
    began: Weather,
}

/// Counts as a connection that calls are made on.
struct Counted {
    links: Arc<watch::Sender<BTreeMap<u64, usize>>>,
    began: u64,
}

impl Counted {
    fn new(links: &Arc<watch::Sender<BTreeMap<u64, usize>>>, began: u64) -> Self {
        links.send_modify(|links| *links.entry(began).or_default() += 1);
        Self { links: Arc::clone(links), began }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.links.send_modify(|links| {
            let left = links.get(&self.began).map_or(0, |number| number.saturating_sub(1));
            if left == 0 {
                links.remove(&self.began)
            } else {
                links.insert(self.began, left)
            };
        });
    }
}

impl Link {
    pub(super) fn new(proxy: &Proxy) -> Self {
        let mut weather = proxy.weather.subscribe();
        // It is counted before the weather can change.
        let now = weather.borrow_and_update();
        let (began, calls) = (*now, Some(Counted::new(&proxy.links, now.silent)));
        drop(now);
        Self { proxy: proxy.clone(), wanted: VecDeque::new(), calls, weather, began }
    }

    /// Until one of the two sides ends, or a rule is met.
    pub(super) async fn forward(mut self, client: TcpStream, server: TcpStream) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let (mut up, mut down) = (BytesMut::new(), BytesMut::new());
        loop {
            let now = *self.weather.borrow_and_update();
            if now.cut != self.began.cut {
                return;
            }
            if now.silent != self.began.silent {
                return self.goes_silent(from_client).await;
            }
            tokio::select! {
                changed = self.weather.changed() => if changed.is_err() { return },
                read = from_client.read_buf(&mut up), if !now.hole => {
                    if !matches!(read, Ok(1..)) {
                        return;
                    }
                    tokio::time::sleep(now.delay).await;
                    match self.calls(&mut up, &mut to_server).await {
                        Ok(true) => {}
                        Ok(false) => {
                            // What was sent before it is run all the same.
                            drain(&mut from_server, to_server).await;
                            return;
                        }
                        Err(_) => return,
                    }
                }
                read = from_server.read_buf(&mut down), if !now.hole => {
                    tokio::time::sleep(now.delay).await;
                    if !matches!(read, Ok(1..)) || !self.replies(&mut down, &mut to_client).await {
                        return;
                    }
                }
            }
            if self.own(&mut to_client).await.is_err() {
                return;
            }
        }
    }

    /// Until the client has had enough of it, or it ends here.
    async fn goes_silent(mut self, mut from_client: OwnedReadHalf) {
        let mut up = BytesMut::new();
        loop {
            let now = *self.weather.borrow_and_update();
            if now.cut != self.began.cut || now.silent_no_more > self.began.silent {
                return;
            }
            tokio::select! {
                changed = self.weather.changed() => if changed.is_err() { return },
                read = from_client.read_buf(&mut up) => match read {
                    Ok(1..) => up.clear(),
                    _ => return,
                }
            }
        }
    }

    fn is_subscriber(&self) -> bool {
        self.calls.is_none()
    }

    /// False: a call met a rule, and is not passed on.
    async fn calls(&mut self, up: &mut BytesMut, server: &mut OwnedWriteHalf) -> io::Result<bool> {
        while let Some(length) = resp::length(up) {
            let call = up.split_to(length);
            let words = resp::words(&call);
            let verb = words.first().copied().unwrap_or_default().to_ascii_uppercase();
            if verb.ends_with(b"SUBSCRIBE") {
                self.calls = None;
            }
            if self.is_subscriber() {
                server.write_all(&call).await?;
                continue;
            }
            let Ok(script) = self.proxy.names.of(&words) else {
                self.wanted.push_back(Wanted::Unknown);
                continue;
            };
            let rule =
                script.and_then(|script| self.proxy.met(&names::steps(&script, &words), &words));
            if let Some(rule) = rule.as_ref().filter(|rule| rule.moment() == Moment::Before) {
                rule.happen(&call);
                return Ok(false);
            }
            server.write_all(&call).await?;
            self.wanted.push_back(Wanted::Reply(rule.map(|rule| (rule, call))));
        }
        Ok(true)
    }

    /// False: it ends here.
    async fn replies(&mut self, down: &mut BytesMut, client: &mut OwnedWriteHalf) -> bool {
        while let Some(length) = resp::length(down) {
            let reply = down.split_to(length);
            let is_message =
                self.is_subscriber() && reply.windows(7).any(|part| part == b"message");
            if is_message && *self.proxy.deaf.borrow() {
                self.proxy.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if !self.is_subscriber() && !reply.starts_with(b">") && !self.is_passed_on(&reply) {
                return false;
            }
            if client.write_all(&reply).await.is_err() || self.own(client).await.is_err() {
                return false;
            }
            self.proxy.heard.fetch_add(u64::from(is_message), Ordering::Relaxed);
        }
        true
    }

    fn is_passed_on(&mut self, reply: &[u8]) -> bool {
        match self.wanted.pop_front() {
            Some(Wanted::Reply(Some((rule, _)))) if reply.starts_with(b"-NOSCRIPT") => {
                self.proxy.not_yet(rule);
                true
            }
            Some(Wanted::Reply(Some((rule, call)))) => {
                self.proxy.unanswered.fetch_add(1, Ordering::Relaxed);
                rule.happen(&call);
                false
            }
            _ => true,
        }
    }

    /// Answers of our own, as soon as it is their turn.
    async fn own(&mut self, client: &mut OwnedWriteHalf) -> io::Result<()> {
        while let Some(Wanted::Unknown) = self.wanted.front() {
            self.wanted.pop_front();
            client.write_all(UNKNOWN).await?;
        }
        Ok(())
    }
}

/// Until the server has read all that it was sent.
async fn drain(from_server: &mut OwnedReadHalf, to_server: OwnedWriteHalf) {
    drop(to_server);
    let mut rest = BytesMut::new();
    while matches!(from_server.read_buf(&mut rest).await, Ok(1..)) {
        rest.clear();
    }
}
