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

/// Reply that the client expects next.
enum ExpectedReply {
    /// Reply of the server, with the rule that its call matched, if any.
    FromServer(Option<(FaultRule, BytesMut)>),
    /// `NOSCRIPT` for a hash unknown to the proxy, so that the client sends the script's text.
    UnknownScript,
}

const NOSCRIPT_REPLY: &[u8] = b"-NOSCRIPT No matching script.\r\n";

pub(super) struct ProxiedConnection {
    proxy: FaultProxy,
    expected_replies: VecDeque<ExpectedReply>,
    /// `None` for a subscriber, which receives messages instead of replies.
    call_counter: Option<ConnectionCountGuard>,
    conditions: watch::Receiver<NetworkConditions>,
    initial_conditions: NetworkConditions,
}

/// Counts this connection among those with calls.
struct ConnectionCountGuard {
    connection_counts: Arc<watch::Sender<BTreeMap<u64, usize>>>,
    half_open_epoch: u64,
}

impl ConnectionCountGuard {
    fn new(counts: &Arc<watch::Sender<BTreeMap<u64, usize>>>, epoch: u64) -> Self {
        counts.send_modify(|counts| *counts.entry(epoch).or_default() += 1);
        Self { connection_counts: Arc::clone(counts), half_open_epoch: epoch }
    }
}

impl Drop for ConnectionCountGuard {
    fn drop(&mut self) {
        self.connection_counts.send_modify(|counts| {
            let remaining =
                counts.get(&self.half_open_epoch).map_or(0, |number| number.saturating_sub(1));
            if remaining == 0 {
                counts.remove(&self.half_open_epoch)
            } else {
                counts.insert(self.half_open_epoch, remaining)
            };
        });
    }
}

impl ProxiedConnection {
    pub(super) fn new(proxy: &FaultProxy) -> Self {
        let mut conditions = proxy.conditions.subscribe();
        // Counted before the conditions can change.
        let current = conditions.borrow_and_update();
        let (initial_conditions, call_counter) = (
            *current,
            Some(ConnectionCountGuard::new(&proxy.connection_counts, current.half_open_epoch)),
        );
        drop(current);
        Self {
            proxy: proxy.clone(),
            expected_replies: VecDeque::new(),
            call_counter,
            conditions,
            initial_conditions,
        }
    }

    /// Forwards until one side closes or a rule matches.
    pub(super) async fn forward(mut self, client: TcpStream, server: TcpStream) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let (mut client_bytes, mut server_bytes) = (BytesMut::new(), BytesMut::new());
        loop {
            let current = *self.conditions.borrow_and_update();
            if current.cut_epoch != self.initial_conditions.cut_epoch {
                return;
            }
            if current.half_open_epoch != self.initial_conditions.half_open_epoch {
                return self.discard_until_closed(from_client).await;
            }
            tokio::select! {
                changed = self.conditions.changed() => if changed.is_err() { return },
                read = from_client.read_buf(&mut client_bytes), if !current.is_stalled => {
                    if !matches!(read, Ok(1..)) {
                        return;
                    }
                    tokio::time::sleep(current.delay).await;
                    match self.forward_calls(&mut client_bytes, &mut to_server).await {
                        Ok(true) => {}
                        Ok(false) => {
                            // Calls that were sent before still run.
                            drain_server(&mut from_server, to_server).await;
                            return;
                        }
                        Err(_) => return,
                    }
                }
                read = from_server.read_buf(&mut server_bytes), if !current.is_stalled => {
                    tokio::time::sleep(current.delay).await;
                    if !matches!(read, Ok(1..)) || !self.forward_replies(&mut server_bytes, &mut to_client).await {
                        return;
                    }
                }
            }
            if self.send_own_replies(&mut to_client).await.is_err() {
                return;
            }
        }
    }

    /// Discards the client's bytes until the client or the proxy closes the connection.
    async fn discard_until_closed(mut self, mut from_client: OwnedReadHalf) {
        let mut client_bytes = BytesMut::new();
        loop {
            let current = *self.conditions.borrow_and_update();
            if current.cut_epoch != self.initial_conditions.cut_epoch
                || current.closed_half_open_epoch > self.initial_conditions.half_open_epoch
            {
                return;
            }
            tokio::select! {
                changed = self.conditions.changed() => if changed.is_err() { return },
                read = from_client.read_buf(&mut client_bytes) => match read {
                    Ok(1..) => client_bytes.clear(),
                    _ => return,
                }
            }
        }
    }

    fn is_subscriber(&self) -> bool {
        self.call_counter.is_none()
    }

    /// Returns false if a call matched a rule before it was forwarded.
    async fn forward_calls(
        &mut self,
        client_bytes: &mut BytesMut,
        server: &mut OwnedWriteHalf,
    ) -> io::Result<bool> {
        while let Some(length) = resp::value_length(client_bytes) {
            let call = client_bytes.split_to(length);
            let arguments = resp::command_args(&call);
            let verb = arguments.first().copied().unwrap_or_default().to_ascii_uppercase();
            if verb.ends_with(b"SUBSCRIBE") {
                self.call_counter = None;
            }
            if self.is_subscriber() {
                server.write_all(&call).await?;
                continue;
            }
            let Ok(script) = self.proxy.script_names.script_name(&arguments) else {
                self.expected_replies.push_back(ExpectedReply::UnknownScript);
                continue;
            };
            let rule = script.and_then(|script| {
                self.proxy.take_matching_rule(
                    &script_names::script_steps(&script, &arguments),
                    &arguments,
                )
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

    /// Returns false if the connection has to be closed.
    async fn forward_replies(
        &mut self,
        server_bytes: &mut BytesMut,
        client: &mut OwnedWriteHalf,
    ) -> bool {
        while let Some(length) = resp::value_length(server_bytes) {
            let reply = server_bytes.split_to(length);
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

    /// Sends the proxy's own replies, in the order of the calls.
    async fn send_own_replies(&mut self, client: &mut OwnedWriteHalf) -> io::Result<()> {
        while let Some(ExpectedReply::UnknownScript) = self.expected_replies.front() {
            self.expected_replies.pop_front();
            client.write_all(NOSCRIPT_REPLY).await?;
        }
        Ok(())
    }
}

/// Reads until the server has processed all calls and closes.
async fn drain_server(from_server: &mut OwnedReadHalf, to_server: OwnedWriteHalf) {
    drop(to_server);
    let mut rest = BytesMut::new();
    while matches!(from_server.read_buf(&mut rest).await, Ok(1..)) {
        rest.clear();
    }
}
