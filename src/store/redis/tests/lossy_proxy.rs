//! `LossyProxy`: loses replies, messages or connections on demand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::store::{Store, redis::script_sources::CHECK_ACL};

/// Start of the script that a new connection runs (`advance_fences_after_failover.lua`).
const FENCE_SCRIPT_START: &[u8] = b"-- Raises the fences of shards";

/// Forwards to a server. It cuts a connection after it has forwarded a call, before the reply.
#[derive(Clone)]
pub(super) struct LossyProxy {
    port: u16,
    /// Number of calls that still lose their reply.
    pending_cuts: Arc<AtomicUsize>,
    /// Refuses connections after the last cut.
    refuses_after_cut: Arc<AtomicBool>,
    /// Number of connections that still lose the reply to their layout check, and stay open.
    pending_mutes: Arc<AtomicUsize>,
    /// Number of reads for subscribers that were discarded.
    lost_reads: Arc<AtomicUsize>,
    faults: Arc<watch::Sender<ProxyFaults>>,
}

/// Faults of all connections, for as long as they are set.
#[derive(Debug, Clone, Copy, Default)]
struct ProxyFaults {
    /// Discards messages for subscribers.
    drops_messages: bool,
    /// Reads nothing for subscribers. The server buffers their messages, up to its limit.
    stalls_messages: bool,
    /// Stops both directions of all connections, which stay open. Data in transit arrives
    /// afterwards.
    is_partitioned: bool,
    /// Changes whenever all connections are forgotten, or ended.
    forget_count: usize,
    end_count: usize,
}

impl LossyProxy {
    pub(super) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let proxy = Self {
            port,
            pending_cuts: Arc::default(),
            refuses_after_cut: Arc::default(),
            pending_mutes: Arc::default(),
            lost_reads: Arc::default(),
            faults: Arc::default(),
        };
        let own = proxy.clone();
        crate::store::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                crate::store::spawn(own.clone().forward_connection(client, server));
            }
        });
        proxy
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/?ns=test", self.port)
    }

    /// Connects a store with a deadline that a loaded machine meets.
    pub(super) async fn store_with_long_timeout(&self) -> Store {
        let builder = Store::builder(&self.url()).call_timeout(Duration::from_secs(10));
        builder.connect().await.expect("the URL is right")
    }

    /// Loses the replies to the next `calls` script calls.
    pub(super) fn lose_next_replies(&self, calls: usize) {
        self.pending_cuts.store(calls, Ordering::SeqCst);
    }

    /// Loses the reply to the next script call, and refuses all connections after it.
    pub(super) fn lose_reply_and_refuse_connections(&self) {
        self.refuses_after_cut.store(true, Ordering::SeqCst);
        self.lose_next_replies(1);
    }

    /// Discards all replies of the next `connections` connections after their layout check.
    pub(super) fn mute_next_connections(&self, connections: usize) {
        self.pending_mutes.store(connections, Ordering::SeqCst);
    }

    pub(super) fn has_muted_all(&self) -> bool {
        self.pending_mutes.load(Ordering::SeqCst) == 0
    }

    pub(super) fn pending_cuts(&self) -> usize {
        self.pending_cuts.load(Ordering::SeqCst)
    }

    pub(super) fn set_drops_messages(&self, drops: bool) {
        self.faults.send_modify(|faults| faults.drops_messages = drops);
    }

    /// Returns how often messages for subscribers were lost.
    pub(super) fn lost_message_reads(&self) -> usize {
        self.lost_reads.load(Ordering::SeqCst)
    }

    pub(super) fn set_stalls_messages(&self, stalls: bool) {
        self.faults.send_modify(|faults| faults.stalls_messages = stalls);
    }

    /// Acts like a pulled cable, or a firewall that drops packets: no connection is reset.
    pub(super) fn set_partitioned(&self, partitioned: bool) {
        self.faults.send_modify(|faults| faults.is_partitioned = partitioned);
    }

    /// Acts like a restarted firewall: existing connections pass nothing any more, new ones work.
    #[cfg(feature = "bb8-redis")]
    pub(super) fn forget_connections(&self) {
        self.faults.send_modify(|faults| faults.forget_count += 1);
    }

    /// Ends all existing connections.
    pub(super) fn end_connections(&self) {
        self.faults.send_modify(|faults| faults.end_count += 1);
    }

    async fn forward_connection(self, mut client: TcpStream, server: u16) {
        let mut faults = self.faults.subscribe();
        let initial = *faults.borrow();
        if faults.wait_for(|faults| !faults.is_partitioned).await.is_err() {
            return;
        }
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else {
            return;
        };
        if self.refuses_after_cut.load(Ordering::SeqCst) && self.pending_cuts() == 0 {
            return;
        }
        let (mut is_muted, mut is_subscriber) = (false, false);
        let (mut request, mut reply) = ([0; 65536], [0; 65536]);
        loop {
            let now = *faults.borrow_and_update();
            if now.end_count != initial.end_count {
                return;
            }
            let is_blocked = now.is_partitioned || now.forget_count != initial.forget_count;
            let is_stalled = is_blocked || (is_subscriber && now.stalls_messages);
            tokio::select! {
                changed = faults.changed() => if changed.is_err() { return },
                n = client.read(&mut request), if !is_blocked => {
                    let Ok(n @ 1..) = n else { return };
                    let contains =
                        |text: &[u8]| request[..n].windows(text.len()).any(|part| part == text);
                    let is_handshake =
                        contains(CHECK_ACL.source.as_bytes()) || contains(FENCE_SCRIPT_START);
                    let loses_reply =
                        contains(b"EVAL") && !is_handshake && try_take_one(&self.pending_cuts);
                    is_subscriber |= contains(b"SUBSCRIBE");
                    is_muted |= contains(b"$4\r\nHDEL\r\n") && try_take_one(&self.pending_mutes);
                    if server.write_all(&request[..n]).await.is_err() {
                        return;
                    }
                    if loses_reply {
                        // The server has run the call once it answers. The reply is discarded.
                        let _ = server.read(&mut reply).await;
                        return;
                    }
                }
                n = server.read(&mut reply), if !is_stalled => {
                    let Ok(n @ 1..) = n else { return };
                    let is_lost = is_muted || (is_subscriber && now.drops_messages);
                    self.lost_reads.fetch_add(usize::from(is_lost), Ordering::SeqCst);
                    if !is_lost && client.write_all(&reply[..n]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Proxy that forwards each new connection to its current target. Existing connections stay with
/// theirs.
pub(super) struct RedirectProxy {
    port: u16,
    target: Arc<AtomicU16>,
}

impl RedirectProxy {
    pub(super) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let target = Arc::new(AtomicU16::new(port));
        let port = listener.local_addr().expect("it is bound").port();
        let own = Arc::clone(&target);
        crate::store::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let port = own.load(Ordering::SeqCst);
                crate::store::spawn(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Self { port, target }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn set_target(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
    }
}

fn try_take_one(counter: &AtomicUsize) -> bool {
    let one_less = |n: usize| n.checked_sub(1);
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
}
