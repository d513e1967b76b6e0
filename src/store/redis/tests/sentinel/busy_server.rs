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
    super::{wait_until, wait_until_usable},
    FakeSentinel, SECOND, ServerProcess,
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

const BUSY_ERROR: &[u8] = b"-BUSY Redis is busy running a script.\r\n";

/// Stands before a server, and refuses `INFO` in its place while it is told to.
#[derive(Clone)]
struct InfoRefusingProxy {
    port: u16,
    refuses_info: Arc<AtomicBool>,
    refused_count: Arc<AtomicUsize>,
    cut_signal: Arc<watch::Sender<u64>>,
}

impl InfoRefusingProxy {
    async fn start_in_front_of(server: &ServerProcess) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (refuses, refused, cut) = (Arc::default(), Arc::default(), Arc::default());
        let before = Self { port, refuses_info: refuses, refused_count: refused, cut_signal: cut };
        let (own, server) = (before.clone(), server.port());
        crate::store::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                crate::store::spawn(own.clone().forward_connection(client, server));
            }
        });
        before
    }

    fn set_refuses_info(&self, refuse: bool) {
        self.refuses_info.store(refuse, Ordering::SeqCst);
    }

    fn refused_count(&self) -> usize {
        self.refused_count.load(Ordering::SeqCst)
    }

    async fn forward_connection(self, mut client: TcpStream, server: u16) -> Option<()> {
        let mut cut = self.cut_signal.subscribe();
        let mut server = TcpStream::connect(("127.0.0.1", server)).await.ok()?;
        let (mut up, mut down) = ([0; 65536], [0; 65536]);
        loop {
            tokio::select! {
                _ = cut.changed() => return None,
                n = client.read(&mut up) => {
                    let n = n.ok().filter(|n| *n > 0)?;
                    let asks = up[..n].windows(8).any(|word| word == b"\r\nINFO\r\n");
                    if asks && self.refuses_info.load(Ordering::SeqCst) {
                        self.refused_count.fetch_add(1, Ordering::SeqCst);
                        client.write_all(BUSY_ERROR).await.ok()?;
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
async fn server_busy_during_handshake_is_not_a_new_server() {
    let server = ServerProcess::start().await;
    let before = InfoRefusingProxy::start_in_front_of(&server).await;
    let sentinel = FakeSentinel::monitoring(before.port).await;
    let store = Store::builder(&sentinel.url()).call_timeout(4 * SECOND).connect().await;
    let store = store.expect("the URL is right");
    wait_until_usable(&store).await;
    let guard = store.lock("x").lease(60 * SECOND).acquire().await.expect("it is free");
    let met = store.backend().server_generation();
    before.set_refuses_info(true);
    before.cut_signal.send_modify(|cut| *cut += 1);
    // It is away meanwhile: nobody knows whose connection this is.
    wait_until("it to be asked", async || {
        let _ = store.ping().await;
        before.refused_count() > 0
    })
    .await;
    before.set_refuses_info(false);
    wait_until_usable(&store).await;
    assert_eq!(store.backend().server_generation(), met, "it was taken for another one");
    assert_eq!(guard.release().await, crate::lock::ReleaseStatus::Released);
}

/// As a server says it.
#[tokio::test]
async fn server_info_fails_while_script_blocks_server() {
    let server = ServerProcess::start().await;
    server.command(&["CONFIG", "SET", "lua-time-limit", "1"]).await;
    let (target, _) = ConnectionSource::Url(server.url())
        .into_target(ConnectionOverrides::default(), SECOND)
        .expect("a URL");
    let opened = target.open(COMMON_SHARD, &ConnectionSettings::default()).await;
    let mut connection = opened.ok().expect("it is there").connection;
    let runs = async {
        let ended = server.try_query::<redis::Value>(&["EVAL", "while true do end", "0"]).await;
        ended.expect_err("it was killed");
    };
    let asks = async {
        wait_until("it to be busy", async || {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let busy = redis::cmd("PING").query_async::<String>(&mut connection).await;
            busy.is_err_and(|error| error.code() == Some("BUSY"))
        })
        .await;
        assert!(ServerInfo::fetch(&mut connection).await.is_err(), "it tells nothing for good");
        server.command(&["SCRIPT", "KILL"]).await;
        wait_until("it to answer", async || {
            redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok()
        })
        .await;
        let facts = ServerInfo::fetch(&mut connection).await.ok().expect("it can answer");
        assert!(facts.identity(None).is_some());
    };
    tokio::join!(runs, asks);
}
