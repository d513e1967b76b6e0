//! One connection through the proxy.

use std::{collections::VecDeque, io, sync::atomic::Ordering};

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::{
    Proxy, names, resp,
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
    /// What comes is messages, not answers.
    subscriber: bool,
}

impl Link {
    pub(super) fn new(proxy: Proxy) -> Self {
        Self { proxy, wanted: VecDeque::new(), subscriber: false }
    }

    /// Until one of the two sides ends, or a rule is met.
    pub(super) async fn forward(mut self, client: TcpStream, server: TcpStream) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let (mut up, mut down) = (BytesMut::new(), BytesMut::new());
        let mut weather = self.proxy.weather.subscribe();
        let began = *weather.borrow_and_update();
        loop {
            let now = *weather.borrow_and_update();
            if now.cut != began.cut {
                return;
            }
            if now.silent != began.silent {
                // Until the client has had enough of it.
                while matches!(from_client.read_buf(&mut up).await, Ok(1..)) {
                    up.clear();
                }
                return;
            }
            tokio::select! {
                changed = weather.changed() => if changed.is_err() { return },
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

    /// False: a call met a rule, and is not passed on.
    async fn calls(&mut self, up: &mut BytesMut, server: &mut OwnedWriteHalf) -> io::Result<bool> {
        while let Some(length) = resp::length(up) {
            let call = up.split_to(length);
            let words = resp::words(&call);
            let verb = words.first().copied().unwrap_or_default().to_ascii_uppercase();
            if verb.ends_with(b"SUBSCRIBE") {
                self.subscriber = true;
            }
            if self.subscriber {
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
            let is_message = self.subscriber && reply.windows(7).any(|part| part == b"message");
            if is_message && *self.proxy.deaf.borrow() {
                self.proxy.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if !self.subscriber && !reply.starts_with(b">") && !self.is_passed_on(&reply) {
                return false;
            }
            if client.write_all(&reply).await.is_err() || self.own(client).await.is_err() {
                return false;
            }
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
