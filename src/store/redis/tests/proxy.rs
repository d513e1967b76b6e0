//! A proxy that loses what it is told to lose.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

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
}

impl Proxy {
    pub(super) async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let proxy = Self { port, cuts: Arc::default(), last: Arc::default(), mute: Arc::default() };
        let own = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(own.clone().forward(client, server));
            }
        });
        proxy
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/?ns=test", self.port)
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

    async fn forward(self, mut client: TcpStream, server: u16) {
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else {
            return;
        };
        if self.last.load(Ordering::SeqCst) && self.cuts_left() == 0 {
            return;
        }
        let mut mute = false;
        let (mut up, mut down) = ([0; 65536], [0; 65536]);
        loop {
            tokio::select! {
                n = client.read(&mut up) => {
                    let Ok(n @ 1..) = n else { return };
                    let names = |word: &[u8]| up[..n].windows(word.len()).any(|at| at == word);
                    let cut = names(b"EVAL") && takes_one(&self.cuts);
                    mute |= names(b"HSETNX") && takes_one(&self.mute);
                    if server.write_all(&up[..n]).await.is_err() {
                        return;
                    }
                    if cut {
                        // The server has run it once it answers; the answer goes nowhere.
                        let _ = server.read(&mut down).await;
                        return;
                    }
                }
                n = server.read(&mut down) => {
                    let Ok(n @ 1..) = n else { return };
                    if !mute && client.write_all(&down[..n]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

fn takes_one(left: &AtomicUsize) -> bool {
    let one_less = |n: usize| n.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
}
