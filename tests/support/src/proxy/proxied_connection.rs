//! `ProxiedConnection`: one connection through the proxy.

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
    FaultProxy, NetworkConditions,
    fault_rule::{FaultPoint, FaultRule},
    resp, script_names,
};

/// An answer that the client waits for, in their order.
enum ExpectedReply {
    /// Of the server, to a call that met a rule or not.
    FromServer(Option<(FaultRule, BytesMut)>),
    /// That nobody knows this hash: the script has to be sent whole, so that it has a name here.
    UnknownScript,
}

const NOSCRIPT_REPLY: &[u8] = b"-NOSCRIPT No matching script.\r\n";

pub(super) struct ProxiedConnection {
    proxy: FaultProxy,
    expected_replies: VecDeque<ExpectedReply>,
    /// For as long as calls come: what comes of a subscriber is messages, not answers.
    call_counter: Option<ConnectionCountGuard>,
    conditions: watch::Receiver<NetworkConditions>,
    initial_conditions: NetworkConditions,
}

/// Counts as a connection that calls are made on.
struct ConnectionCountGuard {
    connection_counts: Arc<watch::Sender<BTreeMap<u64, usize>>>,
    half_open_epoch: u64,
}

impl ConnectionCountGuard {
    fn new(links: &Arc<watch::Sender<BTreeMap<u64, usize>>>, began: u64) -> Self {
        links.send_modify(|links| *links.entry(began).or_default() += 1);
        Self { connection_counts: Arc::clone(links), half_open_epoch: began }
    }
}

impl Drop for ConnectionCountGuard {
    fn drop(&mut self) {
        self.connection_counts.send_modify(|links| {
            let left =
                links.get(&self.half_open_epoch).map_or(0, |number| number.saturating_sub(1));
            if left == 0 {
                links.remove(&self.half_open_epoch)
            } else {
                links.insert(self.half_open_epoch, left)
            };
        });
    }
}

impl ProxiedConnection {
    pub(super) fn new(proxy: &FaultProxy) -> Self {
        let mut weather = proxy.conditions.subscribe();
        // It is counted before the weather can change.
        let now = weather.borrow_and_update();
        let (began, calls) =
            (*now, Some(ConnectionCountGuard::new(&proxy.connection_counts, now.half_open_epoch)));
        drop(now);
        Self {
            proxy: proxy.clone(),
            expected_replies: VecDeque::new(),
            call_counter: calls,
            conditions: weather,
            initial_conditions: began,
        }
    }

    /// Until one of the two sides ends, or a rule is met.
    pub(super) async fn forward(mut self, client: TcpStream, server: TcpStream) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let (mut up, mut down) = (BytesMut::new(), BytesMut::new());
        loop {
            let now = *self.conditions.borrow_and_update();
            if now.cut_epoch != self.initial_conditions.cut_epoch {
                return;
            }
            if now.half_open_epoch != self.initial_conditions.half_open_epoch {
                return self.discard_until_closed(from_client).await;
            }
            tokio::select! {
                changed = self.conditions.changed() => if changed.is_err() { return },
                read = from_client.read_buf(&mut up), if !now.is_stalled => {
                    if !matches!(read, Ok(1..)) {
                        return;
                    }
                    tokio::time::sleep(now.delay).await;
                    match self.forward_calls(&mut up, &mut to_server).await {
                        Ok(true) => {}
                        Ok(false) => {
                            // What was sent before it is run all the same.
                            drain_server(&mut from_server, to_server).await;
                            return;
                        }
                        Err(_) => return,
                    }
                }
                read = from_server.read_buf(&mut down), if !now.is_stalled => {
                    tokio::time::sleep(now.delay).await;
                    if !matches!(read, Ok(1..)) || !self.forward_replies(&mut down, &mut to_client).await {
                        return;
                    }
                }
            }
            if self.send_own_replies(&mut to_client).await.is_err() {
                return;
            }
        }
    }

    /// Until the client has had enough of it, or it ends here.
    async fn discard_until_closed(mut self, mut from_client: OwnedReadHalf) {
        let mut up = BytesMut::new();
        loop {
            let now = *self.conditions.borrow_and_update();
            if now.cut_epoch != self.initial_conditions.cut_epoch
                || now.closed_half_open_epoch > self.initial_conditions.half_open_epoch
            {
                return;
            }
            tokio::select! {
                changed = self.conditions.changed() => if changed.is_err() { return },
                read = from_client.read_buf(&mut up) => match read {
                    Ok(1..) => up.clear(),
                    _ => return,
                }
            }
        }
    }

    fn is_subscriber(&self) -> bool {
        self.call_counter.is_none()
    }

    /// False: a call met a rule, and is not passed on.
    async fn forward_calls(
        &mut self,
        up: &mut BytesMut,
        server: &mut OwnedWriteHalf,
    ) -> io::Result<bool> {
        while let Some(length) = resp::value_length(up) {
            let call = up.split_to(length);
            let words = resp::command_args(&call);
            let verb = words.first().copied().unwrap_or_default().to_ascii_uppercase();
            if verb.ends_with(b"SUBSCRIBE") {
                self.call_counter = None;
            }
            if self.is_subscriber() {
                server.write_all(&call).await?;
                continue;
            }
            let Ok(script) = self.proxy.script_names.script_name(&words) else {
                self.expected_replies.push_back(ExpectedReply::UnknownScript);
                continue;
            };
            let rule = script.and_then(|script| {
                self.proxy.take_matching_rule(&script_names::script_steps(&script, &words), &words)
            });
            if let Some(rule) = rule.as_ref().filter(|rule| rule.point() == FaultPoint::BeforeCall)
            {
                rule.trigger(&call);
                return Ok(false);
            }
            server.write_all(&call).await?;
            self.expected_replies
                .push_back(ExpectedReply::FromServer(rule.map(|rule| (rule, call))));
        }
        Ok(true)
    }

    /// False: it ends here.
    async fn forward_replies(&mut self, down: &mut BytesMut, client: &mut OwnedWriteHalf) -> bool {
        while let Some(length) = resp::value_length(down) {
            let reply = down.split_to(length);
            let is_message =
                self.is_subscriber() && reply.windows(7).any(|part| part == b"message");
            if is_message && *self.proxy.drops_messages.borrow() {
                self.proxy.dropped_messages.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if !self.is_subscriber()
                && !reply.starts_with(b">")
                && !self.match_expected_reply(&reply)
            {
                return false;
            }
            if client.write_all(&reply).await.is_err()
                || self.send_own_replies(client).await.is_err()
            {
                return false;
            }
            self.proxy.delivered_messages.fetch_add(u64::from(is_message), Ordering::Relaxed);
        }
        true
    }

    fn match_expected_reply(&mut self, reply: &[u8]) -> bool {
        match self.expected_replies.pop_front() {
            Some(ExpectedReply::FromServer(Some((rule, _)))) if reply.starts_with(b"-NOSCRIPT") => {
                self.proxy.restore_rule(rule);
                true
            }
            Some(ExpectedReply::FromServer(Some((rule, call)))) => {
                self.proxy.unanswered_calls.fetch_add(1, Ordering::Relaxed);
                rule.trigger(&call);
                false
            }
            _ => true,
        }
    }

    /// Answers of our own, as soon as it is their turn.
    async fn send_own_replies(&mut self, client: &mut OwnedWriteHalf) -> io::Result<()> {
        while let Some(ExpectedReply::UnknownScript) = self.expected_replies.front() {
            self.expected_replies.pop_front();
            client.write_all(NOSCRIPT_REPLY).await?;
        }
        Ok(())
    }
}

/// Until the server has read all that it was sent.
async fn drain_server(from_server: &mut OwnedReadHalf, to_server: OwnedWriteHalf) {
    drop(to_server);
    let mut rest = BytesMut::new();
    while matches!(from_server.read_buf(&mut rest).await, Ok(1..)) {
        rest.clear();
    }
}
