//! A proxy that loses what it is told to lose.

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

use crate::store::{Store, redis::scripts::CHECK_ACL};

/// How the script begins that a new connection runs (`advance_fences_after_failover.lua`).
const FENCE_SCRIPT_START: &[u8] = b"-- Raises the fences of shards";

/// Forwards to a server; cuts a connection after it has forwarded a call, before the reply.
#[derive(Clone)]
pub(super) struct LossyProxy {
    port: u16,
    /// Calls that still have to lose their reply.
    pending_cuts: Arc<AtomicUsize>,
    /// The last cut is the end: no connection works after it.
    refuses_after_cut: Arc<AtomicBool>,
    /// Connections that still have to lose the answer to their check of the layout, and stay open.
    pending_mutes: Arc<AtomicUsize>,
    /// Reads of a subscriber that were thrown away.
    lost_reads: Arc<AtomicUsize>,
    faults: Arc<watch::Sender<ProxyFaults>>,
}

/// What becomes of the bytes of all connections, for as long as it lasts.
#[derive(Debug, Clone, Copy, Default)]
struct ProxyFaults {
    /// Subscribers hear nothing; what was for them is gone.
    drops_messages: bool,
    /// Nothing is read for subscribers: the server keeps it for them, until it does not.
    stalls_messages: bool,
    /// Nothing passes either way, and no connection ends. What is on its way arrives afterwards.
    is_partitioned: bool,
    /// Another one after each time that all connections were forgotten, or ended.
    forget_count: usize,
    end_count: usize,
}

impl LossyProxy {
    pub(super) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let weather = Arc::new(watch::Sender::default());
        let (cuts, last, mute) = (Arc::default(), Arc::default(), Arc::default());
        let proxy = Self {
            port,
            pending_cuts: cuts,
            refuses_after_cut: last,
            pending_mutes: mute,
            lost_reads: Arc::default(),
            faults: weather,
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

    /// A store for which a loaded machine is no outage.
    pub(super) async fn store_with_long_timeout(&self) -> Store {
        let builder = Store::builder(&self.url()).call_timeout(Duration::from_secs(10));
        builder.connect().await.expect("the URL is right")
    }

    /// The next `calls` script calls lose their reply.
    pub(super) fn lose_next_replies(&self, calls: usize) {
        self.pending_cuts.store(calls, Ordering::SeqCst);
    }

    /// The next script call loses its reply, and nobody is connected any more.
    pub(super) fn lose_reply_and_refuse_connections(&self) {
        self.refuses_after_cut.store(true, Ordering::SeqCst);
        self.lose_next_replies(1);
    }

    /// The next `connections` hear nothing any more once they have looked at the layout.
    pub(super) fn mute_next_connections(&self, connections: usize) {
        self.pending_mutes.store(connections, Ordering::SeqCst);
    }

    pub(super) fn has_muted_all(&self) -> bool {
        self.pending_mutes.load(Ordering::SeqCst) == 0
    }

    pub(super) fn pending_cuts(&self) -> usize {
        self.pending_cuts.load(Ordering::SeqCst)
    }

    pub(super) fn set_drops_messages(&self, lose: bool) {
        self.faults.send_modify(|weather| weather.drops_messages = lose);
    }

    /// How often something that was for subscribers was lost.
    pub(super) fn lost_message_reads(&self) -> usize {
        self.lost_reads.load(Ordering::SeqCst)
    }

    pub(super) fn set_stalls_messages(&self, stall: bool) {
        self.faults.send_modify(|weather| weather.stalls_messages = stall);
    }

    /// A cable that is pulled, or a firewall that forgets: nobody is told.
    pub(super) fn set_partitioned(&self, hole: bool) {
        self.faults.send_modify(|weather| weather.is_partitioned = hole);
    }

    /// A firewall that was restarted: of the connections there are, nothing passes any more. New ones are well.
    #[cfg(feature = "bb8-redis")]
    pub(super) fn forget_connections(&self) {
        self.faults.send_modify(|weather| weather.forget_count += 1);
    }

    /// All connections there are end.
    pub(super) fn end_connections(&self) {
        self.faults.send_modify(|weather| weather.end_count += 1);
    }

    async fn forward_connection(self, mut client: TcpStream, server: u16) {
        let mut weather = self.faults.subscribe();
        let born = *weather.borrow();
        if weather.wait_for(|weather| !weather.is_partitioned).await.is_err() {
            return;
        }
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else {
            return;
        };
        if self.refuses_after_cut.load(Ordering::SeqCst) && self.pending_cuts() == 0 {
            return;
        }
        let (mut mute, mut subscriber) = (false, false);
        let (mut up, mut down) = ([0; 65536], [0; 65536]);
        loop {
            let now = *weather.borrow_and_update();
            if now.end_count != born.end_count {
                return;
            }
            let hole = now.is_partitioned || now.forget_count != born.forget_count;
            let stalled = hole || (subscriber && now.stalls_messages);
            tokio::select! {
                changed = weather.changed() => if changed.is_err() { return },
                n = client.read(&mut up), if !hole => {
                    let Ok(n @ 1..) = n else { return };
                    let names = |word: &[u8]| up[..n].windows(word.len()).any(|at| at == word);
                    let connects = names(CHECK_ACL.source.as_bytes()) || names(FENCE_SCRIPT_START);
                    let cut = names(b"EVAL") && !connects && try_take_one(&self.pending_cuts);
                    subscriber |= names(b"SUBSCRIBE");
                    mute |= names(b"$4\r\nHDEL\r\n") && try_take_one(&self.pending_mutes);
                    if server.write_all(&up[..n]).await.is_err() {
                        return;
                    }
                    if cut {
                        // The server has run it once it answers; the answer goes nowhere.
                        let _ = server.read(&mut down).await;
                        return;
                    }
                }
                n = server.read(&mut down), if !stalled => {
                    let Ok(n @ 1..) = n else { return };
                    let lost = mute || (subscriber && now.drops_messages);
                    self.lost_reads.fetch_add(usize::from(lost), Ordering::SeqCst);
                    if !lost && client.write_all(&down[..n]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// An address that takes each new connection to where it leads at the time. Those that are there stay where they are.
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

fn try_take_one(left: &AtomicUsize) -> bool {
    let one_less = |n: usize| n.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
}
