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
const FENCES: &[u8] = b"-- Raises the fences of shards";

/// Forwards to a server; cuts a connection after it has forwarded a call, before the reply.
#[derive(Clone)]
pub(super) struct Proxy {
    port: u16,
    /// Calls that still have to lose their reply.
    cuts: Arc<AtomicUsize>,
    /// The last cut is the end: no connection works after it.
    last: Arc<AtomicBool>,
    /// Connections that still have to lose the answer to their check of the layout, and stay open.
    mute: Arc<AtomicUsize>,
    /// Reads of a subscriber that were thrown away.
    lost: Arc<AtomicUsize>,
    weather: Arc<watch::Sender<Weather>>,
}

/// What becomes of the bytes of all connections, for as long as it lasts.
#[derive(Debug, Clone, Copy, Default)]
struct Weather {
    /// Subscribers hear nothing; what was for them is gone.
    messages_lost: bool,
    /// Nothing is read for subscribers: the server keeps it for them, until it does not.
    messages_stalled: bool,
    /// Nothing passes either way, and no connection ends. What is on its way arrives afterwards.
    hole: bool,
    /// Another one after each time that all connections were forgotten, or ended.
    forgotten: usize,
    ended: usize,
}

impl Proxy {
    pub(super) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let weather = Arc::new(watch::Sender::default());
        let (cuts, last, mute) = (Arc::default(), Arc::default(), Arc::default());
        let proxy = Self { port, cuts, last, mute, lost: Arc::default(), weather };
        let own = proxy.clone();
        crate::store::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                crate::store::spawn(own.clone().forward(client, server));
            }
        });
        proxy
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/?ns=test", self.port)
    }

    /// A store for which a loaded machine is no outage.
    pub(super) async fn patient_store(&self) -> Store {
        let builder = Store::builder(&self.url()).call_timeout(Duration::from_secs(10));
        builder.connect().await.expect("the URL is right")
    }

    /// The next `calls` script calls lose their reply.
    pub(super) fn cut(&self, calls: usize) {
        self.cuts.store(calls, Ordering::SeqCst);
    }

    /// The next script call loses its reply, and nobody is connected any more.
    pub(super) fn cut_for_good(&self) {
        self.last.store(true, Ordering::SeqCst);
        self.cut(1);
    }

    /// The next `connections` hear nothing any more once they have looked at the layout.
    pub(super) fn mute(&self, connections: usize) {
        self.mute.store(connections, Ordering::SeqCst);
    }

    pub(super) fn muted_all(&self) -> bool {
        self.mute.load(Ordering::SeqCst) == 0
    }

    pub(super) fn cuts_left(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }

    pub(super) fn lose_messages(&self, lose: bool) {
        self.weather.send_modify(|weather| weather.messages_lost = lose);
    }

    /// How often something that was for subscribers was lost.
    pub(super) fn lost(&self) -> usize {
        self.lost.load(Ordering::SeqCst)
    }

    pub(super) fn stall_messages(&self, stall: bool) {
        self.weather.send_modify(|weather| weather.messages_stalled = stall);
    }

    /// A cable that is pulled, or a firewall that forgets: nobody is told.
    pub(super) fn hole(&self, hole: bool) {
        self.weather.send_modify(|weather| weather.hole = hole);
    }

    /// A firewall that was restarted: of the connections there are, nothing passes any more. New ones are well.
    #[cfg(feature = "bb8-redis")]
    pub(super) fn forget(&self) {
        self.weather.send_modify(|weather| weather.forgotten += 1);
    }

    /// All connections there are end.
    pub(super) fn end(&self) {
        self.weather.send_modify(|weather| weather.ended += 1);
    }

    async fn forward(self, mut client: TcpStream, server: u16) {
        let mut weather = self.weather.subscribe();
        let born = *weather.borrow();
        if weather.wait_for(|weather| !weather.hole).await.is_err() {
            return;
        }
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else {
            return;
        };
        if self.last.load(Ordering::SeqCst) && self.cuts_left() == 0 {
            return;
        }
        let (mut mute, mut subscriber) = (false, false);
        let (mut up, mut down) = ([0; 65536], [0; 65536]);
        loop {
            let now = *weather.borrow_and_update();
            if now.ended != born.ended {
                return;
            }
            let hole = now.hole || now.forgotten != born.forgotten;
            let stalled = hole || (subscriber && now.messages_stalled);
            tokio::select! {
                changed = weather.changed() => if changed.is_err() { return },
                n = client.read(&mut up), if !hole => {
                    let Ok(n @ 1..) = n else { return };
                    let names = |word: &[u8]| up[..n].windows(word.len()).any(|at| at == word);
                    let connects = names(CHECK_ACL.source.as_bytes()) || names(FENCES);
                    let cut = names(b"EVAL") && !connects && takes_one(&self.cuts);
                    subscriber |= names(b"SUBSCRIBE");
                    mute |= names(b"$4\r\nHDEL\r\n") && takes_one(&self.mute);
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
                    let lost = mute || (subscriber && now.messages_lost);
                    self.lost.fetch_add(usize::from(lost), Ordering::SeqCst);
                    if !lost && client.write_all(&down[..n]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// An address that takes each new connection to where it leads at the time. Those that are there stay where they are.
pub(super) struct Redirect {
    port: u16,
    target: Arc<AtomicU16>,
}

impl Redirect {
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

    pub(super) fn leads_to(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
    }
}

fn takes_one(left: &AtomicUsize) -> bool {
    let one_less = |n: usize| n.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
}
