//! A server that is held up by somebody's script when a connection to it is made: it can't say who it is, which is not
//! that it is another one, nor that it may not be asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::{
    super::{eventually, usable},
    FakeSentinel, SECOND, Server,
};
use crate::store::{
    Store,
    key_names::COMMON_SHARD,
    redis::{
        connection_source::{ConnectionOverrides, ConnectionSource},
        server_info::ServerInfo,
        target::ConnectionSettings,
    },
};

const BUSY: &[u8] = b"-BUSY Redis is busy running a script.\r\n";

/// Stands before a server, and refuses `INFO` in its place while it is told to.
#[derive(Clone)]
struct Before {
    port: u16,
    refuses: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
    cut: Arc<watch::Sender<u64>>,
}

impl Before {
    async fn server(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (refuses, refused, cut) = (Arc::default(), Arc::default(), Arc::default());
        let before = Self { port, refuses, refused, cut };
        let (own, server) = (before.clone(), server.port());
        crate::store::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                crate::store::spawn(own.clone().forward(client, server));
            }
        });
        before
    }

    fn refuse(&self, refuse: bool) {
        self.refuses.store(refuse, Ordering::SeqCst);
    }

    fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    async fn forward(self, mut client: TcpStream, server: u16) -> Option<()> {
        let mut cut = self.cut.subscribe();
        let mut server = TcpStream::connect(("127.0.0.1", server)).await.ok()?;
        let (mut up, mut down) = ([0; 65536], [0; 65536]);
        loop {
            tokio::select! {
                _ = cut.changed() => return None,
                n = client.read(&mut up) => {
                    let n = n.ok().filter(|n| *n > 0)?;
                    let asks = up[..n].windows(8).any(|word| word == b"\r\nINFO\r\n");
                    if asks && self.refuses.load(Ordering::SeqCst) {
                        self.refused.fetch_add(1, Ordering::SeqCst);
                        client.write_all(BUSY).await.ok()?;
                    } else {
                        server.write_all(&up[..n]).await.ok()?;
                    }
                }
                n = server.read(&mut down) => {
                    let n = n.ok().filter(|n| *n > 0)?;
                    client.write_all(&down[..n]).await.ok()?;
                }
            }
        }
    }
}

/// Behind sentinels a server that says nothing of itself is known by its address, and so would be another one twice: as
/// it can't answer, and as it can again.
#[tokio::test]
async fn a_server_that_is_busy_as_it_is_met_is_no_other_one() {
    let server = Server::start().await;
    let before = Before::server(&server).await;
    let sentinel = FakeSentinel::of(before.port).await;
    let store = Store::builder(&sentinel.url()).call_timeout(4 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    usable(&store).await;
    let guard = store.lock("x").lease(60 * SECOND).acquire().await.expect("it is free");
    let met = store.backend().server_generation();
    before.refuse(true);
    before.cut.send_modify(|cut| *cut += 1);
    // It is away meanwhile: nobody knows whose connection this is.
    eventually("it to be asked", async || {
        let _ = store.ping().await;
        before.refused() > 0
    })
    .await;
    before.refuse(false);
    usable(&store).await;
    assert_eq!(store.backend().server_generation(), met, "it was taken for another one");
    assert_eq!(guard.release().await, crate::lock::ReleaseStatus::Released);
}

/// As a server says it.
#[tokio::test]
async fn a_server_that_runs_a_long_script_can_not_be_asked_now() {
    let server = Server::start().await;
    server.command(&["CONFIG", "SET", "lua-time-limit", "1"]).await;
    let (target, _) = ConnectionSource::Url(server.url())
        .into_target(ConnectionOverrides::default(), SECOND)
        .expect("a URL");
    let opened = target.open(COMMON_SHARD, &ConnectionSettings::default()).await;
    let mut connection = opened.ok().expect("it is there").connection;
    let runs = async {
        let ended = server.try_ask::<redis::Value>(&["EVAL", "while true do end", "0"]).await;
        ended.expect_err("it was killed");
    };
    let asks = async {
        eventually("it to be busy", async || {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let busy = redis::cmd("PING").query_async::<String>(&mut connection).await;
            busy.is_err_and(|error| error.code() == Some("BUSY"))
        })
        .await;
        assert!(ServerInfo::fetch(&mut connection).await.is_err(), "it tells nothing for good");
        server.command(&["SCRIPT", "KILL"]).await;
        eventually("it to answer", async || {
            redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok()
        })
        .await;
        let facts = ServerInfo::fetch(&mut connection).await.ok().expect("it can answer");
        assert!(facts.identity(None).is_some());
    };
    tokio::join!(runs, asks);
}
